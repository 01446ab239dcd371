"""Steps of several sequences, each with its state in a row of its own, for kernels that keep a state."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch


@dataclass(frozen=True)
class Steps:
    """Sequence s has query_lens[s] tokens in this step, and a past if has_past[s]; two rows belong to no sequence."""

    query_lens: tuple[int, ...]
    has_past: tuple[bool, ...]
    state_rows: torch.Tensor
    cu_query_lens: torch.Tensor
    context_lens: torch.Tensor
    first_row: int = 0

    @property
    def tokens(self) -> int:
        """The number of tokens of the step, with two of padding."""
        return self.first_row + sum(self.query_lens) + 2

    def slices(self) -> list[slice]:
        """Return the slice of each sequence's tokens."""
        ends = self.cu_query_lens.tolist()
        return [slice(begin, end) for begin, end in pairwise(ends)]


def steps(device: torch.device, query_lens: tuple[int, ...], has_past: tuple[bool, ...], first_row: int = 0) -> Steps:
    """Rows in no order, and one row more than there are sequences. `first_row`: tokens of others stand before them."""
    lengths = torch.tensor(query_lens, dtype=torch.int32)
    return Steps(
        query_lens,
        has_past,
        torch.randperm(len(query_lens) + 1)[:-1].to(device),
        (torch.nn.functional.pad(lengths.cumsum(0), (1, 0)) + first_row).to(device, torch.int32),
        (lengths + 5 * torch.tensor(has_past)).to(device, torch.int32),
        first_row,
    )
