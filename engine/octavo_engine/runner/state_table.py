"""Device-resident state of the running requests: one stable row for each, filled by differences.

The scheduler names rows; a step's inputs are gathered from them on the device, and a sampled token is written back to
its row there, so that the next step never waits for the host. The idea is that of vLLM's model runner V2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.request import SamplingParams
from octavo_engine.core.step import NewRow, StepPlan, TableChange
from octavo_engine.runner.transfer import to_device


@dataclass(frozen=True, slots=True)
class RowInfo:
    """What stays the same of a request while it holds a row."""

    request_id: str
    params: SamplingParams
    prompt_len: int
    seed: int


class StateTable:
    """Tokens [rows, max_model_len + 1] and, for each KV group, block tables [rows, max blocks], int32.

    The last column of tokens takes what a full context's last step sampled; nothing is computed on it. `seed` is the
    engine's: a request without one of its own draws by it and its id.
    """

    def __init__(
        self, rows: int, max_model_len: int, block_size: int, num_groups: int, device: torch.device, seed: int = 0
    ) -> None:
        self.block_size = block_size
        self.device = device
        self.max_blocks = -(-max_model_len // block_size)
        self.tokens = torch.zeros(rows, max_model_len + 1, dtype=torch.int32, device=device)
        self.block_tables = [
            torch.zeros(rows, self.max_blocks, dtype=torch.int32, device=device) for _ in range(num_groups)
        ]
        self._infos: list[RowInfo | None] = [None] * rows
        self._seed = seed

    def apply(self, plan: StepPlan) -> None:
        """Take in what a plan brings: new requests and changed blocks. What a row's tables held before is void."""
        for new in plan.new_rows:
            self._begin(new)
        if plan.table_changes:
            for group, table in enumerate(self.block_tables):
                self._change(table, [change for change in plan.table_changes if change.group == group])

    def _begin(self, new: NewRow) -> None:
        tokens = to_device(new.token_ids, self.device, torch.int32)
        self.tokens[new.row, : len(new.token_ids)].copy_(tokens)
        # Without a seed of its own a request gets the engine's and its id: other requests are other streams.
        seed = new.sampling.seed if new.sampling.seed is not None else self._seed ^ _hash64(new.request_id)
        self._infos[new.row] = RowInfo(new.request_id, new.sampling, new.prompt_len, seed)

    def _change(self, table: Tensor, changes: list[TableChange]) -> None:
        # All changes of a step at once; where two concern one place the later one counts.
        blocks: dict[int, int] = {}
        for change in changes:
            first = change.row * self.max_blocks + change.index
            blocks.update(zip(range(first, first + len(change.blocks)), change.blocks, strict=True))
        places = to_device(list(blocks.keys()), self.device)
        # Where a row holds no block (-1) nobody reads, but every entry must be a block.
        values = to_device(list(blocks.values()), self.device, torch.int32).clamp_(min=0)
        table.view(-1).index_copy_(0, places, values)

    def info(self, row: int) -> RowInfo:
        """Who holds `row`."""
        if (info := self._infos[row]) is None:
            raise RuntimeError(f"row {row} is used before it was begun")
        return info

    def read_tokens(self, rows: Tensor, positions: Tensor) -> Tensor:
        """The tokens [R], int32, at `positions` [R] of `rows` [R]."""
        return self.tokens[rows, positions]

    def write_tokens(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Put sampled `tokens` [R] at `positions` [R] of `rows` [R]."""
        self.tokens.index_put_((rows, positions), tokens.to(torch.int32))


def _hash64(text: str) -> int:
    """FNV-1a: the same in every process, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value
