"""From logits to tokens.

A row's token depends on its own logits, parameters and history alone, never on the rest of the batch: its random
numbers come from its seed and the token's position. On a GPU tokens are drawn with Gumbel noise (kernels/sampling.py)
and no step waits for the device; on a CPU by inverting the cumulative distribution (inverse_cdf.py). Both follow the
same distribution, with different numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.request import SamplingParams
from octavo_engine.kernels.where import triton_runs_on
from octavo_engine.runner.adjust import SampleRow, adjust_logits
from octavo_engine.runner.inverse_cdf import draw, likeliest, uniform
from octavo_engine.runner.transfer import to_device

_GREEDY_BELOW = 1e-5
"""Dividing by a temperature smaller than this would leave float32's range; it means greedy, as in vLLM."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log probabilities of the A rows that asked for them, still on the device."""

    rows: list[int]
    """[A] which rows of the sampled ones these are."""
    counts: list[int]
    """[A] how many of the likeliest tokens each asked for, at most K."""
    tokens: Tensor
    """[A] the chosen tokens, then their log probabilities and their ranks."""
    chosen: Tensor
    ranks: Tensor
    ids: Tensor
    """[A, K] the likeliest tokens, likeliest first, then their log probabilities."""
    values: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled, on the device; nothing here has waited for it."""

    tokens: Tensor
    """[R] int64"""
    finite: Tensor
    """[R] bool; where logits were not finite the token means nothing."""
    logprobs: LogprobTensors | None


def sample(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor | None]) -> Sampled:
    """One token for each row of `logits` [R, vocab], float32, or in 16 bits where Triton runs.

    `history[i]` holds the tokens known of row i (prompt and answer) if its penalties need them.
    """
    adjusted = adjust_logits(logits, rows, history)
    choose = _by_kernels if triton_runs_on(logits.device) else _by_torch
    tokens, finite = choose(adjusted, rows)
    return Sampled(tokens, finite, _logprobs(logits, tokens, rows))


def _by_kernels(logits: Tensor, rows: Sequence[SampleRow]) -> tuple[Tensor, Tensor]:
    """Tokens [R] and whether logits were finite [R]; all rows in the same launches."""
    from octavo_engine.kernels.sampling import SamplingColumns, sample_tokens

    count, vocab = logits.shape
    params = [row.params for row in rows]
    top_ks = [asked.top_k if 0 < asked.top_k < vocab else 0 for asked in params]
    seeds, positions, device_top_ks = to_device(
        [_signed(row.seed) for row in rows] + [row.position for row in rows] + top_ks, logits.device
    ).view(3, count)
    temperatures, top_ps, min_ps = to_device(
        [asked.temperature if _draws(asked) else 0.0 for asked in params]
        + [asked.top_p for asked in params]
        + [asked.min_p for asked in params],
        logits.device,
        torch.float32,
    ).view(3, count)
    filtered = any(
        _draws(asked) and (top_k > 0 or asked.top_p < 1 or asked.min_p > 0)
        for asked, top_k in zip(params, top_ks, strict=True)
    )
    columns = SamplingColumns(temperatures, device_top_ks, top_ps, min_ps, seeds, positions)
    return sample_tokens(logits, columns, filtered=filtered)


def _by_torch(logits: Tensor, rows: Sequence[SampleRow]) -> tuple[Tensor, Tensor]:
    """The same on a CPU."""
    best, tokens = likeliest(logits)
    drawing = [index for index, row in enumerate(rows) if _draws(row.params)]
    if drawing:
        tokens = tokens.clone()
        index = torch.tensor(drawing)
        numbers = [uniform(rows[i].seed, rows[i].position) for i in drawing]
        tokens[index] = draw(logits[index], [rows[i].params for i in drawing], numbers)
    return tokens, torch.isfinite(best)


def _draws(params: SamplingParams) -> bool:
    return params.temperature >= _GREEDY_BELOW


def _signed(seed: int) -> int:
    """The 64 bits of a seed as an int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _logprobs(logits: Tensor, tokens: Tensor, rows: Sequence[SampleRow]) -> LogprobTensors | None:
    asked = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asked:
        return None
    index = to_device(asked, logits.device)
    logprobs = torch.log_softmax(logits[index], dim=-1, dtype=torch.float32)
    chosen = logprobs.gather(1, tokens[index].unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    counts = [rows[i].params.logprobs or 0 for i in asked]
    top = logprobs.topk(max(1, *counts), dim=-1)
    return LogprobTensors(asked, counts, tokens[index], chosen[:, 0], ranks, top.indices, top.values)
