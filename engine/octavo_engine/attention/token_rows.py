"""Rows of tokens that layers keep in paged blocks and attend to without an attention backend.

Row r of a sequence stands for its tokens r * rate to (r + 1) * rate, and lies in the block of the last of them. So a
full block has all rows that end in it, and can be shared, swapped and cached like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from octavo_engine.attention.backend import KVGroupSpec, StepInputs

TILE_NUMBERS = 1 << 25
"""The most numbers that the tokens of one tile may take, unless one token alone takes more."""


@dataclass(frozen=True, slots=True)
class RowStep:
    """A step's positions in the rows of one KV group, shared by all its layers."""

    table: Tensor
    """[S, blocks] int64, the block table."""
    sequence: Tensor
    """[T] int64, the sequence of each token."""
    positions: Tensor
    """[T] int64"""
    completing: Tensor
    """[N] int64, the tokens of T that complete a row."""
    lens: tuple[int, ...]
    """The number of tokens of each sequence in this step, on the host."""
    contexts: tuple[int, ...]
    """The number of tokens of each sequence after this step, on the host."""
    block_size: int
    rate: int

    def slots(self, sequence: Tensor, rows: Tensor) -> Tensor:
        """Return the slots of `rows` of sequences, both int64 of shapes that broadcast."""
        last = rows * self.rate + (self.rate - 1)
        blocks = self.table[sequence, last // self.block_size]
        return blocks * -(-self.block_size // self.rate) + last % self.block_size // self.rate

    def tiles(self, numbers: Callable[[int], int]) -> Iterator[tuple[slice, int]]:
        """Split T into tiles of consecutive tokens of at most `TILE_NUMBERS`; yield each and its longest context.

        `numbers` returns how many numbers one token takes, by the length of its context.
        """
        begin = end = longest = 0
        for count, context in zip(self.lens, self.contexts, strict=True):
            left = count
            while left:
                most = max(longest, context)
                room = tile_tokens(numbers(most)) - (end - begin)
                if room <= 0:
                    yield slice(begin, end), longest
                    begin, longest = end, 0
                    continue
                taken = min(left, room)
                end, left, longest = end + taken, left - taken, most
        if end > begin:
            yield slice(begin, end), longest


@dataclass(frozen=True, slots=True)
class TokenRows:
    """The rows of one name in one layer, with the step's positions in them."""

    tensor: Tensor
    """[blocks, rows of a block, size]"""
    step: RowStep

    def write(self, values: Tensor) -> None:
        """Write `values` [N, size], the rows that this step completes."""
        step, tokens = self.step, self.step.completing
        slots = step.slots(step.sequence[tokens], step.positions[tokens] // step.rate)
        self.tensor.flatten(0, 1).index_copy_(0, slots, values.to(self.tensor.dtype))

    def read(self, sequence: Tensor, rows: Tensor) -> Tensor:
        """Return `rows` of sequences, both int64 of shapes that broadcast; [..., size]."""
        return self.tensor.flatten(0, 1)[self.step.slots(sequence, rows)]


def prepare_rows(inputs: StepInputs, group: int, block_size: int, rate: int) -> RowStep:
    """Return a step's positions in KV group number `group`. Host lengths are exact, as no graph has such layers."""
    lens, contexts, device = inputs.query_lens_host, inputs.context_lens_host, inputs.positions.device
    counts = inputs.cu_query_lens.long().diff()
    if rate == 1:
        completing = torch.arange(len(inputs.positions), device=device)
    else:
        completing = torch.tensor(_completing(lens, contexts, rate), dtype=torch.int64, device=device)
    return RowStep(
        inputs.block_tables[group].long(),
        torch.repeat_interleave(counts, output_size=len(inputs.positions)),
        inputs.positions,
        completing,
        lens,
        contexts,
        block_size,
        rate,
    )


def _completing(lens: tuple[int, ...], contexts: tuple[int, ...], rate: int) -> list[int]:
    """Return the tokens of T that are the last of their row's `rate` tokens."""
    found: list[int] = []
    for begin, count, context in zip(accumulate(lens, initial=0), lens, contexts, strict=False):
        start = context - count
        first = begin + (start // rate + 1) * rate - 1 - start
        found += range(first, begin + count, rate)
    return found


def allocate_rows(
    group: KVGroupSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> dict[tuple[int, str], Tensor]:
    """Allocate the rows of each layer of `group`, [num_blocks, rows of a block, size], zeroed."""
    shape = num_blocks, group.rows_of_block(block_size)
    return {
        (layer, row.name): torch.zeros(*shape, row.size, dtype=dtype, device=device)
        for layer in group.layers
        for row in group.rows
    }


def tile_tokens(numbers: int) -> int:
    """Return the most tokens of a tile, if each takes so many numbers."""
    return max(1, TILE_NUMBERS // numbers)


def tile_numbers(tokens: int, one: int) -> int:
    """Return the most numbers that a tile of at most `tokens` tokens takes, if a token takes `one`."""
    return min(tokens * one, max(one, TILE_NUMBERS))


def best_rows(rows: TokenRows, tokens: slice, kept: int, score: Callable[[slice, Tensor], Tensor]) -> Tensor:
    """Return the `kept` rows of the highest scores for each of the step's `tokens`, [n, kept] int64.

    `score` returns the float32 scores [m, L] of a sequence's rows [L, size] for some of these tokens. Where fewer than
    `kept` rows are complete at a token's position, the rest are rows that are not. Each sequence's rows are ranked
    apart, so that the choice between equal scores depends on no other sequence.
    """
    step, device = rows.step, rows.tensor.device
    beyond = max(step.contexts) // step.rate
    best = torch.full((tokens.stop - tokens.start, kept), beyond, dtype=torch.int64, device=device)
    begin = 0
    for sequence, (count, context) in enumerate(zip(step.lens, step.contexts, strict=True)):
        first, last = max(begin, tokens.start), min(begin + count, tokens.stop)
        begin += count
        there = torch.arange(context // step.rate, device=device)
        if first >= last or not len(there):
            continue
        scores = score(slice(first, last), rows.read(torch.full_like(there, sequence), there).float())
        complete = (step.positions[first:last, None] + 1) // step.rate
        scores.masked_fill_(there >= complete, -torch.inf)
        width = min(kept, len(there))
        best[first - tokens.start : last - tokens.start, :width] = scores.topk(width, dim=-1).indices
    return best


def attend_rows(query: Tensor, keys: Tensor, seen: Tensor, sinks: Tensor | None, scale: float) -> Tensor:
    """Return attention [n, H, D] of each query [n, H, D] to its own keys [n, L, D], which are values too, in float32.

    `seen` [n, L] is True for the keys that count; the others may hold anything. `sinks` [H] is an additional logit of
    each head; None: there are none.
    """
    keys = keys.float().masked_fill(~seen[..., None], 0)
    scores = (query.float() @ keys.transpose(1, 2)).mul_(scale).masked_fill_(~seen[:, None], -torch.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None].expand(len(query), -1, 1)), dim=-1)
    return (scores.softmax(dim=-1)[..., : keys.shape[1]] @ keys).to(query.dtype)
