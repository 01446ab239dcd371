"""Computes a step in parts if the device has no memory for the whole: only rows that do not fit even alone fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from octavo_engine.core.request import FinishReason
from octavo_engine.core.step import RowError, StepPlan

T = TypeVar("T")


def compute_in_parts(
    plan: StepPlan, compute: Callable[[StepPlan], T]
) -> Iterator[tuple[StepPlan, T | torch.OutOfMemoryError]]:
    """Compute a plan of several rows, which failed as a whole, in parts: yield each part with its result, in order.

    A part, like the plan, is halved until there is memory for it. A row for which there is none even alone is a part of
    its own, with the error. Memory that PyTorch keeps for later is freed before each attempt. The state table must hold
    the plan's changes already: no part has them again.
    """
    waiting = _halves(range(len(plan.decode_rows) + len(plan.chunks)))
    while waiting:
        rows = waiting.pop()
        part = part_of(plan, rows)
        torch.cuda.empty_cache()
        computed: T | torch.OutOfMemoryError
        try:
            computed = compute(part)
        except torch.OutOfMemoryError as error:
            computed = error.with_traceback(None)  # whose frames would keep the attempt's memory
        if isinstance(computed, torch.OutOfMemoryError) and len(rows) > 1:
            waiting += _halves(rows)
        else:
            yield part, computed


def _halves(rows: range) -> list[range]:
    """Return the second half and the first."""
    half = len(rows) // 2
    return [rows[half:], rows[:half]]


def part_of(plan: StepPlan, rows: range) -> StepPlan:
    """Return a plan of some rows alone, counted over the decoding rows and then the chunks, without its changes."""
    decodes = len(plan.decode_rows)
    first, last = min(rows.start, decodes), min(rows.stop, decodes)
    return StepPlan(
        plan.step,
        decode_rows=plan.decode_rows[first:last],
        decode_starts=plan.decode_starts[first:last],
        drafts={index - first: drafts for index, drafts in plan.drafts.items() if first <= index < last},
        chunks=plan.chunks[max(0, rows.start - decodes) : max(0, rows.stop - decodes)],
    )


def num_places(plan: StepPlan) -> int:
    """Return the number of places that a plan samples."""
    return plan.num_decode_tokens + sum(chunk.samples for chunk in plan.chunks)


def no_memory(error: torch.OutOfMemoryError) -> RowError:
    """Return the end of a row for which there was no memory even alone, with what PyTorch needed and what was free."""
    sizes = ". ".join(str(error).split(". ")[:3]).rstrip(".")  # then come the device's processes
    return FinishReason.MEMORY, (
        f"the device had no memory to compute this request, neither at first nor when it was tried again: {sizes}; if "
        "that happens often, lower --gpu-memory-utilization, --max-num-seqs or --max-num-batched-tokens"
    )
