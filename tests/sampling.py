"""Samples without an engine, from a state table filled with rows, parameters, seeds and positions as the worker fills
it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.step import NewRow, StepPlan
from octavo_engine.runner.sampling.sampler import Sampled, sample
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable
from octavo_engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class SampleRow:
    """One row to sample. `position` is the position of its next token."""

    params: SamplingParams
    seed: int
    position: int
    prompt_len: int


def prepared(
    rows: Sequence[SampleRow], history: Sequence[Tensor | None], device: torch.device | str = "cpu"
) -> tuple[SampledRows, StateTable]:
    """A state table with `rows`. `history[i]` are the known tokens of row i; by default all are 0."""
    device = torch.device(device)
    longest = max(row.position for row in rows)
    table = StateTable(len(rows), longest, 16, 1, device)
    table.tokens = torch.zeros(len(rows), longest + 1, dtype=torch.int32, device=device)
    news = []
    for index, (row, tokens) in enumerate(zip(rows, history, strict=True)):
        known = () if tokens is None else tuple(tokens.tolist())
        news.append(NewRow(index, f"r{index}", known, row.prompt_len, _seeded(row)))
    table.apply(StepPlan(0, tuple(news)))
    numbers, places = list(range(len(rows))), [row.position for row in rows]
    on_device = (torch.tensor(values, dtype=torch.int64).to(device) for values in (numbers, places))
    return SampledRows(numbers, places, *on_device), table


def _seeded(row: SampleRow) -> SamplingParams:
    return SamplingParams(**{name: getattr(row.params, name) for name in row.params.__slots__} | {"seed": row.seed})


def sample_rows(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor | None]) -> Sampled:
    """Sample one token for each row of `logits`, which stay as they are: sampling may change its own."""
    return sample(logits.clone(), *prepared(rows, history, logits.device))
