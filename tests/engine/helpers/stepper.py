"""Runs a Decoder step by step as the runner does, with sequences and block tables of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.states import allocate_states, prepare_states
from octavo_engine.attention.token_rows import allocate_rows, prepare_rows
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.model.decoder import Decoder
from octavo_engine.runner.kv_cache import group_indices, row_group_indices


@dataclass(frozen=True)
class StepRow:
    """A sequence's part of a step."""

    token_ids: list[int]
    start: int
    """The number of tokens that are computed already."""
    block_table: list[int]

    @property
    def positions(self) -> range:
        """The positions of the step's tokens."""
        return range(self.start, self.start + len(self.token_ids))


def step_inputs(rows: list[StepRow], block_size: int, sample: list[int] | None = None, groups: int = 1) -> StepInputs:
    """Return the inputs of a step, in which all KV groups have the same block tables.

    `sample` are the indices of the tokens that are sampled; by default all.
    """
    tokens = [token for row in rows for token in row.token_ids]
    positions = [position for row in rows for position in row.positions]
    slots = [
        row.block_table[position // block_size] * block_size + position % block_size
        for row in rows
        for position in row.positions
    ]
    query_lens = [len(row.token_ids) for row in rows]
    contexts = [row.positions.stop for row in rows]
    width = max(len(row.block_table) for row in rows)
    padded = [row.block_table + [0] * (width - len(row.block_table)) for row in rows]
    tables = torch.tensor(padded, dtype=torch.int32)
    return StepInputs(
        token_ids=torch.tensor(tokens, dtype=torch.int32),
        positions=torch.tensor(positions),
        cu_query_lens=torch.tensor([0, *query_lens]).cumsum(0).int(),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=(tables,) * groups,
        slot_mapping=(torch.tensor(slots),) * groups,
        token_indices=torch.arange(len(tokens)) if sample is None else torch.tensor(sample, dtype=torch.int64),
        query_lens_host=tuple(query_lens),
        context_lens_host=tuple(contexts),
    )


@dataclass
class Sequence:
    """Tokens of a sequence, how many are computed, and the blocks they are in."""

    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Stepper:
    """A decoder with a paged cache; `step` computes the next tokens of some sequences and returns their logits.

    Layers with a window keep the blocks before it, as all KV groups have one block table.
    """

    def __init__(
        self, decoder: Decoder, *, num_blocks: int = 128, block_size: int = 16, backend: AttentionBackend | None = None
    ) -> None:
        self.decoder, self.block_size = decoder, block_size
        dtype = decoder.dtype
        self.groups = decoder.kv_groups
        chunked = frozenset(index for index, group in enumerate(self.groups) if group.chunked)
        self.backend = backend or TorchAttention(chunked)
        self.caches = {
            layer: cache
            for group in self.groups
            if group.for_backend
            for layer, cache in self.backend.allocate(group, num_blocks, block_size, dtype, torch.device("cpu")).items()
        }
        for cache in self.caches.values():
            # Whatever an earlier owner may have left must not matter.
            cache.key.fill_(float("nan"))
            cache.value.fill_(float("nan"))
        self.states = {
            layer: states
            for group in self.groups
            if group.states
            for layer, states in allocate_states(group, num_blocks, dtype, torch.device("cpu")).items()
        }
        self.rows = {
            place: rows
            for group in self.groups
            for place, rows in allocate_rows(group, num_blocks, block_size, dtype, torch.device("cpu")).items()
        }
        for tensor in (*(tensor for states in self.states.values() for tensor in states), *self.rows.values()):
            tensor.fill_(float("nan"))
        self.free = list(range(num_blocks))
        random.Random(0).shuffle(self.free)

    @torch.inference_mode()
    def step(self, work: list[tuple[Sequence, int]], sample: list[int] | None = None) -> list[Tensor]:
        """Return the logits [n, vocab] of n more tokens of each sequence, or of the tokens `sample` in one tensor."""
        rows = []
        for sequence, count in work:
            ids = sequence.tokens[sequence.computed : sequence.computed + count]
            assert len(ids) == count
            while len(sequence.blocks) * self.block_size < sequence.computed + count:
                sequence.blocks.append(self.free.pop())
            rows.append(StepRow(ids, sequence.computed, sequence.blocks))
            sequence.computed += count
        inputs = step_inputs(rows, self.block_size, sample, len(self.groups))
        group_of_layer = group_indices(self.groups, states=False)
        context = StepContext(
            backend=self.backend,
            caches=self.caches,
            metadata=tuple(
                prepare_states(inputs, index, len(self.states[group.layers[0]][0]) - 1)
                if group.states
                else prepare_rows(inputs, index, self.block_size, group.rate)
                if group.rows
                else self.backend.prepare(inputs, index, self.block_size, group.window)
                for index, group in enumerate(self.groups)
            ),
            group_of_layer=[group_of_layer.get(layer, -1) for layer in range(len(self.decoder.layers))],
            states=self.states,
            state_groups=group_indices(self.groups, states=True),
            rows=self.rows,
            row_groups=row_group_indices(self.groups),
        )
        logits = self.decoder.logits(self.decoder(inputs, context))
        return [logits] if sample is not None else list(logits.split([count for _, count in work]))
