"""Compares the logits of mixed steps by CUDA graphs with those of an eager step, before an engine serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.core.step import StepPlan
from octavo_engine.runner.graphs import StepGraph
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.state_table import StateTable

_LARGEST_DIFFERENCE = 0.25
"""The largest accepted distance of two rows of logits, as a share of the expected row's distance from its mean.

Kernels with other tiles round differently, which changes some hundredths even in FP8. The logits of a token that
attends to wrong tokens differ by 1 and more."""


def graphs_match_eager(
    graphs: Iterable[StepGraph],
    plan: StepPlan,
    table: StateTable,
    eager: Callable[[StepInputs], Tensor],
    *,
    compares: bool = True,
) -> bool:
    """Return True if each of `graphs` gives about the same logits of `plan` as `eager` does; waits for the device.

    The graphs come first: the keys and values that they attend to are those that they write. A rank without logits only
    computes, and does not compare.
    """
    found: list[Tensor] = []
    for graph in graphs:
        step = gather_inputs(plan, table, graph.inputs)
        graph.logits.fill_(torch.nan)  # all graphs write to one buffer
        graph.replay()
        found.append(graph.logits[: len(step.sampled.rows)].clone())
    expected = eager(gather_inputs(plan, table).inputs)
    return not compares or all(alike(logits, expected) for logits in found)


def alike(logits: Tensor, expected: Tensor) -> bool:
    """Return True if the logits [R, vocab] of each row differ from the expected ones by no more than rounding does."""
    one, other = (values.float() - values.float().mean(-1, keepdim=True) for values in (logits, expected))
    difference, size = (values.norm(dim=-1) for values in (one - other, other))
    return bool((difference <= _LARGEST_DIFFERENCE * size).all())
