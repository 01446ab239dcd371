"""Decode steps as CUDA graphs: one launch instead of hundreds.

A graph repeats the recorded kernels on the same memory. So there is one graph for each size of a ladder of batch sizes,
and a step's inputs are gathered into fixed buffers and padded to the next size. The host decides nothing inside a
graph: the host lengths that backends read there are upper bounds. Steps with prefills run eagerly, as each has a shape
of its own and kernels long enough to hide their launches.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, StepInputs
from octavo_engine.capture import Capture, Work
from octavo_engine.config import EngineConfig
from octavo_engine.runner.state_table import StateTable

log = logging.getLogger(__name__)

LARGEST = 512
"""The largest graph: a larger step's kernels take so long that launching them is hidden anyway."""
_RUNGS = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST + 1, 16))

Forward = Callable[[StepInputs, Tensor], None]
"""Computes a decode step's logits [S, vocab] into the given tensor."""
Captured = Callable[[int, int], None]
"""Called with the number of captured graphs and the number of all graphs."""


def uses_graphs(config: EngineConfig, device: torch.device, backend: AttentionBackend) -> bool:
    """Return True if decodes run as graphs: on GPUs, unless --enforce-eager or the attention backend excludes it.

    Ranks on GPUs communicate over NCCL, whose operations can be recorded. Those of gloo cannot, and it is only used on
    CPUs.
    """
    return device.type == "cuda" and backend.graph_safe and not config.enforce_eager


def ladder(max_sampled: int) -> list[int]:
    """Return the batch sizes that get a graph, ascending: close together, so that few padded rows are computed.

    The last is `max_sampled` itself or `LARGEST`.
    """
    last = min(max_sampled, LARGEST)
    return [*(size for size in _RUNGS if size < last), last]


def padding_inputs(table: StateTable, rows: int) -> StepInputs:
    """Allocate fixed input buffers for `rows` decodes of `table`'s sequences, filled with padding.

    A padded row is a query token of a sequence without context: its slot is -1, so it writes no keys or values, and it
    attends to nothing.
    """
    device, width = table.device, table.max_blocks

    def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return StepInputs(
        token_ids=zeros(rows),
        positions=zeros(rows, dtype=torch.int64),
        cu_query_lens=torch.arange(rows + 1, dtype=torch.int32, device=device),
        context_lens=zeros(rows),
        block_tables=tuple(zeros(rows, width) for _ in table.block_tables),
        slot_mapping=tuple(zeros(rows, dtype=torch.int64) - 1 for _ in table.block_tables),
        token_indices=torch.arange(rows, device=device),
        query_lens_host=(1,) * rows,
        context_lens_host=(width * table.block_size,) * rows,
        long_context=None if table.long_rows is None else zeros(rows, dtype=torch.bool),
    )


def first_inputs(whole: StepInputs, rows: int) -> StepInputs:
    """Return views of the first `rows` decodes of inputs that are all decodes."""
    return StepInputs(
        token_ids=whole.token_ids[:rows],
        positions=whole.positions[:rows],
        cu_query_lens=whole.cu_query_lens[: rows + 1],
        context_lens=whole.context_lens[:rows],
        block_tables=tuple(table[:rows] for table in whole.block_tables),
        slot_mapping=tuple(slots[:rows] for slots in whole.slot_mapping),
        token_indices=whole.token_indices[:rows],
        query_lens_host=whole.query_lens_host[:rows],
        context_lens_host=whole.context_lens_host[:rows],
        long_context=None if whole.long_context is None else whole.long_context[:rows],
    )


class DecodeGraphs:
    """The graphs of all batch sizes, with the inputs that they read and the buffer for their logits [rows, vocab].

    All graphs share one buffer of logits; if the graphs allocated it, each size would keep one of its own.
    """

    def __init__(
        self,
        capture: Capture,
        sizes: list[int],
        whole: StepInputs,
        logits: Tensor,
        forward: Forward,
        captured: Captured,
    ) -> None:
        self.whole, self.logits = whole, logits
        self._sizes = sizes
        self._inputs = {rows: first_inputs(whole, rows) for rows in sizes}
        largest_first = sizes[::-1]
        started = time.perf_counter()
        replays = capture.capture(self._works(largest_first, forward, captured))
        self._replays = dict(zip(largest_first, replays, strict=True))
        seconds = time.perf_counter() - started
        log.info("CUDA graphs: decodes of %d batch sizes up to %d captured in %.1f s", len(sizes), sizes[-1], seconds)

    def _works(self, sizes: list[int], forward: Forward, captured: Captured) -> Iterator[Work]:
        for done, rows in enumerate(sizes):
            captured(done, len(sizes))
            yield partial(forward, self._inputs[rows], self.logits[:rows])
        captured(len(sizes), len(sizes))

    def covers(self, count: int) -> bool:
        """Return True if there is a graph for `count` sequences."""
        return count <= self._sizes[-1]

    def inputs(self, count: int) -> StepInputs:
        """Return the input buffers of the smallest graph that computes at least `count` decodes."""
        return self._inputs[self._rung(count)]

    def replay(self, count: int) -> Tensor:
        """Return the logits [count, vocab] of the values in `inputs(count)`; the next replay overwrites them."""
        self._replays[self._rung(count)]()
        return self.logits[:count]

    def _rung(self, count: int) -> int:
        return self._sizes[bisect_left(self._sizes, count)]
