"""Computes a step in parts where the device has no memory for the whole, so that only rows fail that fail alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from octavo_engine.core.step import StepPlan

T = TypeVar("T")


def compute_in_parts(plan: StepPlan, compute: Callable[[StepPlan], T]) -> Iterator[tuple[StepPlan, T | None]]:
    """Yield a plan's rows in parts, in their order, each with what `compute` returned for it.

    A part is halved until there is memory for it. A row for which there is none even alone is a part of its own, with
    None. Memory that PyTorch keeps for later is freed before each attempt. The state table must hold the plan's changes
    already: no part has them again.
    """
    waiting = [range(len(plan.decode_rows) + len(plan.chunks))]
    while waiting:
        rows = waiting.pop()
        part = part_of(plan, rows)
        torch.cuda.empty_cache()
        try:
            computed = compute(part)
        except torch.OutOfMemoryError:
            computed = None
        if computed is None and len(rows) > 1:
            half = len(rows) // 2
            waiting += [rows[half:], rows[:half]]
        else:
            yield part, computed


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
