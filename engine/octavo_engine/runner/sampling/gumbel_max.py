"""Draws tokens on a CPU by the Gumbel-max trick, with the random numbers of kernels/sampling.py.

A row's token is the one with the largest logit / temperature + Gumbel noise (Gumbel 1954; Maddison, Tarlow, Minka
2014). Noise depends on seed, position and token. So logits with other rounding errors give another token only if the
two largest sums are closer than those errors. Inverting the cumulative distribution takes only one random number a row,
but there a small change of one probability shifts the bounds of all later tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.kernels.cpu.library import CPUKernels, cpu_kernels
from octavo_engine.runner.sampling_table import ParameterColumns

_CANDIDATES = 1024
"""For top-p this many likeliest tokens are sorted first; all tokens are sorted only if these are too few."""
_GOLDEN, _ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of each row's largest logit, and whether that logit is finite: [R] each.

    It is `max(dim=-1)`, but many times quicker.
    """
    suits = logits.device.type == "cpu" and logits.dtype == torch.float32 and logits.is_contiguous()
    if suits and (kernels := cpu_kernels()) is not None:
        return kernels.likeliest_tokens(logits)
    best, tokens = logits.max(dim=-1)
    return tokens, best.isfinite()


def draw(logits: Tensor, tokens: Tensor, columns: ParameterColumns, positions: Tensor) -> Tensor:
    """Draw a token [R], int64, for each row of `logits` [R, vocab], float32 and contiguous on a CPU; no row is greedy.

    `tokens` [R] are the likeliest tokens, and `positions` [R] the positions that the drawn tokens will have.
    """
    kernels = cpu_kernels()
    peaks = logits.gather(1, tokens.unsqueeze(1))[:, 0]
    thresholds = keep_thresholds(logits, peaks, columns, kernels)
    if kernels is not None:
        return kernels.draw_tokens(logits, tokens, thresholds, columns.temperatures, columns.seeds, positions)
    drawn = tokens.clone()
    for row in torch.isfinite(peaks).nonzero()[:, 0].tolist():  # one at a time: noise takes much memory
        scores = (logits[row] - peaks[row]) / columns.temperatures[row]
        scores += gumbel_noise(int(columns.seeds[row]), int(positions[row]), len(scores))
        drawn[row] = torch.where(logits[row] >= thresholds[row], scores, -torch.inf).argmax()
    return drawn


def gumbel_noise(seed: int, position: int, vocab: int) -> Tensor:
    """Return Gumbel noise [vocab], float32, for the token at `position`; `seed` is a signed number of 64 bits.

    The noise is -log(-log(1 - u)), where u in (0, 1] is made of the uppermost 31 bits of output number `token` of a
    SplitMix64 (Steele, Lea, Flood 2014) that is seeded with seed and position. For small u a series replaces
    -log(1 - u), as 1 - u would lose the digits of u.
    """
    begin = np.array([seed], np.int64).view(np.uint64) * _GOLDEN + np.array([position + 1], np.uint64) * _ODD
    outputs = _mix64(_mix64(begin) + np.arange(1, vocab + 1, dtype=np.uint64) * _GOLDEN)
    u = (torch.from_numpy((outputs >> np.uint64(33)).astype(np.float32)) + 0.5) * 2.0**-31
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4))))
    exponential = torch.where(u < 0.02, series, -torch.log1p(-u.clamp(max=1 - 2.0**-24)))
    return -exponential.log()


def _mix64(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's outputs for `states`, uint64; NumPy's unsigned integers wrap around as it needs."""
    states = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    states = (states ^ (states >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return states ^ (states >> np.uint64(31))


def keep_thresholds(logits: Tensor, peaks: Tensor, columns: ParameterColumns, kernels: CPUKernels | None) -> Tensor:
    """Return the smallest logit [R] that each row of `logits` [R, vocab] may draw, by top-k, top-p and min-p.

    `peaks` [R] are the rows' largest logits.
    """
    thresholds = _top_k_thresholds(logits, columns.top_ks)
    if bool((columns.top_ps < 1).any()):
        find = _top_p_thresholds if kernels is None else kernels.top_p_thresholds
        thresholds = find(logits, peaks, thresholds, columns.temperatures, columns.top_ps)
    least = peaks + columns.temperatures * columns.min_ps.log()
    return torch.where(columns.min_ps > 0, torch.maximum(thresholds, least), thresholds)


def _top_k_thresholds(logits: Tensor, ks: Tensor) -> Tensor:
    """Return the k-th largest logit of each row, -inf where k is 0 or at least the vocabulary's size; `ks` [R]."""
    limited = (ks > 0) & (ks < logits.shape[-1])
    largest = int((ks * limited).max())
    if not largest:
        return torch.full_like(ks, -torch.inf, dtype=logits.dtype)
    index = torch.where(limited, ks, largest).unsqueeze(1) - 1
    return torch.where(limited, logits.topk(largest, dim=-1).values.gather(1, index)[:, 0], -torch.inf)


def _top_p_thresholds(
    logits: Tensor, peaks: Tensor, thresholds: Tensor, temperatures: Tensor, top_ps: Tensor
) -> Tensor:
    """Return the smallest logit of the smallest set of likeliest tokens with `top_ps` of the mass (Holtzman 2020).

    This is the C kernel `top_p_thresholds` in PyTorch.
    """

    def weights(values: Tensor) -> Tensor:
        scaled = (values - peaks.unsqueeze(1)) / temperatures.unsqueeze(1)
        return torch.where(values < thresholds.unsqueeze(1), 0.0, scaled.exp())

    target = weights(logits).sum(dim=-1, keepdim=True) * top_ps.unsqueeze(1)
    ordered = logits.topk(min(_CANDIDATES, logits.shape[-1]), dim=-1).values
    if bool((weights(ordered).sum(dim=-1, keepdim=True) < target).any()):
        ordered = logits.sort(dim=-1, descending=True).values
    masses = weights(ordered)
    before = masses.cumsum(dim=-1) - masses
    kept = (before < target).sum(dim=-1, keepdim=True).clamp(min=1)
    return torch.where(top_ps < 1, ordered.gather(1, kept - 1)[:, 0], thresholds)
