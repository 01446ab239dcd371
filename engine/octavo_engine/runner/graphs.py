"""Steps as CUDA graphs: one launch instead of hundreds.

A graph repeats the recorded kernels on the same memory. So there is one graph for each size of a ladder, and a step's
inputs are gathered into fixed buffers and padded to the next size. The host decides nothing inside a graph: the host
lengths that backends read there are upper bounds.

The size of a step of decodes is its number of sequences. That of a mixed step, one with chunks of prompts, is its
number of tokens: such a graph has room for decodes and behind them for chunks, and kernels read on the device how many
tokens each has, perhaps none. Larger mixed steps run eagerly, as their kernels take long enough to hide their launches.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, StepInputs
from octavo_engine.capture import Capture, Work
from octavo_engine.config import EngineConfig
from octavo_engine.core.step import StepPlan
from octavo_engine.runner.state_table import StateTable

log = logging.getLogger(__name__)

LARGEST = 512
"""The largest graph: a larger step's kernels take so long that launching them is hidden anyway."""
_RUNGS = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16))
_MIXED = (16, 32, 64, 96, 128, *range(192, LARGEST + 1, 64))
_MOST_DECODES = 256
"""Decodes of a mixed step that a graph computes: with more, contexts are not cut, and the device takes long anyway."""
_MOST_CHUNKS = 16
"""Chunks of prompts of a mixed step that a graph computes."""

Forward = Callable[[StepInputs, Tensor], None]
"""Computes a step's logits [R, vocab] into the given tensor."""
Captured = Callable[[int, int], None]
"""Called with the number of captured graphs and the number of all graphs."""


def uses_graphs(config: EngineConfig, device: torch.device, backend: AttentionBackend) -> bool:
    """Return True if steps run as graphs: on GPUs, unless --enforce-eager or the attention backend excludes it.

    Ranks on GPUs communicate over NCCL, whose operations can be recorded. Those of gloo cannot, and it is only used on
    CPUs.
    """
    return device.type == "cuda" and backend.graph_safe and not config.enforce_eager


def uses_mixed_graphs(config: EngineConfig, backend: AttentionBackend, groups: Sequence[KVGroupSpec]) -> bool:
    """Return True if mixed steps run as graphs where decodes do.

    Layers with a state choose their kernels by the lengths of chunks, which a graph leaves open. Attention to a latent
    cache cuts contexts into as many parts as the number of sequences allows, which in a graph is that of its room.
    """
    plain = all(not group.states and not group.rows and group.latent is None for group in groups)
    return config.cudagraph_mode == "full" and backend.mixed_graph_safe and plain


def ladder(max_sampled: int) -> list[int]:
    """Return the batch sizes that get a graph, ascending: close together, so that few padded rows are computed.

    The last is `max_sampled` itself or `LARGEST`.
    """
    last = min(max_sampled, LARGEST)
    return [*(size for size in _RUNGS if size < last), last]


def mixed_ladder(max_tokens: int) -> list[int]:
    """Return the numbers of tokens of mixed steps that get a graph, ascending, for steps of at most `max_tokens`."""
    return [size for size in _MIXED if size <= max_tokens]


def padding_inputs(table: StateTable, decodes: int, tables: Sequence[Tensor] | None = None) -> StepInputs:
    """Allocate fixed input buffers for `decodes` of `table`'s sequences, filled with padding.

    A padded row is a query token of a sequence without context: its slot is -1, so it writes no keys or values, and it
    attends to nothing. Block tables are the first rows of `tables` if they are given.
    """
    tables = block_tables(table, decodes) if tables is None else tables
    return _padding(table, tables, (1,) * decodes, torch.arange(decodes + 1, dtype=torch.int32, device=table.device))


def mixed_inputs(
    table: StateTable, tokens: int, decodes: int, chunks: int, tables: Sequence[Tensor] | None = None
) -> StepInputs:
    """Allocate fixed input buffers for mixed steps of `tokens` tokens, filled with padding.

    They have room for `decodes` and behind these for `chunks`, one of which is not used: the last sequence has all
    tokens of padding, other padded sequences have none. Host lengths of chunks are bounds of their sum and of the
    longest one.
    """
    sequences = decodes + chunks
    tables = block_tables(table, sequences) if tables is None else tables
    starts = torch.zeros(sequences + 1, dtype=torch.int32, device=table.device)
    starts[-1] = tokens
    return _padding(table, tables, (1,) * decodes + (tokens,) + (0,) * (chunks - 1), starts, tokens)


def mixed_sequences(max_sampled: int, max_num_seqs: int, tokens: int) -> tuple[int, int]:
    """Return for how many decodes and chunks a graph of `tokens` tokens has room, one chunk for padding included."""
    return min(max_sampled, _MOST_DECODES, tokens), min(max_num_seqs, _MOST_CHUNKS) + 1


def block_tables(table: StateTable, rows: int) -> tuple[Tensor, ...]:
    """Allocate the block table of each KV group for so many sequences, which graphs share: they are long."""
    shape = (rows, table.max_blocks)
    return tuple(torch.zeros(shape, dtype=torch.int32, device=table.device) for _ in table.block_tables)


def _padding(
    table: StateTable, tables: Sequence[Tensor], query_lens: tuple[int, ...], starts: Tensor, tokens: int = 0
) -> StepInputs:
    """Return buffers of `tokens`, or one for each sequence, whose sequences start at `starts`, all without context."""
    device, sequences = table.device, len(query_lens)
    tokens = tokens or sequences

    def zeros(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(size, dtype=dtype, device=device)

    return StepInputs(
        token_ids=zeros(tokens),
        positions=zeros(tokens, torch.int64),
        cu_query_lens=starts,
        context_lens=zeros(sequences),
        block_tables=tuple(blocks[:sequences] for blocks in tables),
        slot_mapping=tuple(zeros(tokens, torch.int64) - 1 for _ in tables),
        token_indices=torch.arange(sequences, device=device).clamp(max=tokens - 1),
        query_lens_host=query_lens,
        context_lens_host=(table.max_blocks * table.block_size,) * sequences,
        long_context=None if table.long_rows is None else zeros(tokens, torch.bool),
    )


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """One graph: the buffers that it reads, the logits [R, vocab] that it writes, and what replays it."""

    inputs: StepInputs
    logits: Tensor
    """The next replay of any graph overwrites them."""
    replay: Work

    def has_room_for(self, plan: StepPlan) -> bool:
        """Return True if a plan's decodes and chunks are not too many; its tokens are not."""
        decodes = self.inputs.num_decodes
        most_chunks = max(0, len(self.inputs.context_lens) - decodes - 1)
        return plan.num_decode_tokens <= decodes and len(plan.chunks) <= most_chunks


class StepGraphs:
    """The graphs of all sizes. They share one buffer of logits: each size would otherwise keep one of its own."""

    def __init__(
        self, capture: Capture, inputs: Sequence[StepInputs], logits: Tensor, forward: Forward, captured: Captured
    ) -> None:
        """Capture a graph for each of `inputs`; `logits` [R, vocab] has room for all places of each."""
        largest_first = sorted(inputs, key=_size, reverse=True)
        outputs = [logits[: len(each.token_indices)] for each in largest_first]
        started = time.perf_counter()
        replays = capture.capture(_works(largest_first, outputs, forward, captured))
        graphs = [StepGraph(*parts) for parts in zip(largest_first, outputs, replays, strict=True)][::-1]
        self._decodes = [graph for graph in graphs if not graph.inputs.has_chunks]
        self._mixed = [graph for graph in graphs if graph.inputs.has_chunks]
        seconds = time.perf_counter() - started
        log.info("CUDA graphs: %s captured in %.1f s", self._described(), seconds)

    def graph_of(self, plan: StepPlan) -> StepGraph | None:
        """Return the smallest graph that computes a plan; None if there is none."""
        graphs = self._mixed if plan.chunks else self._decodes
        index = bisect_left(graphs, plan.num_tokens, key=lambda graph: _size(graph.inputs))
        return graphs[index] if index < len(graphs) and graphs[index].has_room_for(plan) else None

    def all(self) -> list[StepGraph]:
        """Return all graphs: of decodes, then of mixed steps, each with the smallest first."""
        return self._decodes + self._mixed

    def mixed(self) -> list[StepGraph]:
        """Return the graphs of mixed steps, the smallest first."""
        return self._mixed

    def drop_mixed(self) -> None:
        """Free the graphs of mixed steps, which run eagerly from now on."""
        self._mixed = []

    def _described(self) -> str:
        decodes, mixed = self._decodes, self._mixed
        text = f"decodes of {len(decodes)} batch sizes up to {_size(decodes[-1].inputs)}"
        if mixed:
            text += f", steps with prompts of {len(mixed)} sizes up to {_size(mixed[-1].inputs)} tokens"
        return text


def _works(
    inputs: Sequence[StepInputs], outputs: Sequence[Tensor], forward: Forward, captured: Captured
) -> Iterator[Work]:
    for done, (each, logits) in enumerate(zip(inputs, outputs, strict=True)):
        captured(done, len(inputs))
        yield partial(forward, each, logits)
    captured(len(inputs), len(inputs))


def _size(inputs: StepInputs) -> int:
    return len(inputs.token_ids)
