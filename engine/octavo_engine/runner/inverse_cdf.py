"""Drawing tokens by inverting the cumulative distribution, in PyTorch: the way of a CPU.

One random number a row is all it needs. Gumbel noise, the way of a GPU (kernels/sampling.py), needs one for each entry
of the vocabulary, and a CPU takes 2.5 to 3 times as long for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.core.request import SamplingParams

_MASK = (1 << 64) - 1
_CANDIDATES = 1024
"""So many of the likeliest tokens are sorted for top-p before all are."""
_GROUP = 256
"""Logits whose maximum is looked for together."""


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from splitmix64 (Steele, Lea, Flood 2014) over seed and position."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for multiplier, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        state = ((state ^ (state >> shift)) * multiplier) & _MASK
    return ((state ^ (state >> 31)) >> 11) / float(1 << 53)


def likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and the first place it is at, as `max` finds them.

    By groups: PyTorch's CPU kernel for the maximum alone is many times quicker than the one that also says where.
    """
    vocab = logits.shape[-1]
    if vocab % _GROUP:
        best, tokens = logits.max(dim=-1)
        return best, tokens
    groups = logits.view(len(logits), -1, _GROUP)
    best, group = groups.amax(dim=-1).max(dim=-1, keepdim=True)
    members = groups.gather(1, group.unsqueeze(-1).expand(-1, 1, _GROUP)).squeeze(1)
    tokens = group * _GROUP + members.argmax(dim=-1, keepdim=True)
    return best.squeeze(1), tokens.squeeze(1)


def draw(logits: Tensor, params: Sequence[SamplingParams], numbers: Sequence[float]) -> Tensor:
    """A token [R], int64, for each row of `logits` [R, vocab] on a CPU, by its number in [0, 1); no row is greedy."""

    def column(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    logits = logits / column([row.temperature for row in params])
    logits = _keep_top_k(logits, [row.top_k for row in params])
    probs = torch.softmax(logits, dim=-1)
    probs = _keep_top_p(probs, column([row.top_p for row in params]))
    min_p = column([row.min_p for row in params])
    probs = torch.where(probs < min_p * probs.amax(dim=-1, keepdim=True), 0.0, probs)
    mass = probs.cumsum(dim=-1)
    target = column(numbers) * mass[:, -1:]
    drawn = torch.searchsorted(mass, target, right=True).squeeze(1)
    # Rounding can push the target onto the last sum: take the last token that has any probability.
    last = (probs > 0).long().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(drawn, last)


def _keep_top_k(logits: Tensor, ks: list[int]) -> Tensor:
    vocab = logits.shape[-1]
    ks = [min(k, vocab) if k > 0 else vocab for k in ks]
    largest = max((k for k in ks if k < vocab), default=0)
    if not largest:
        return logits
    index = torch.tensor([min(k, largest) - 1 for k in ks], device=logits.device).unsqueeze(1)
    threshold = logits.topk(largest, dim=-1).values.gather(1, index)
    unlimited = torch.tensor([k == vocab for k in ks], device=logits.device).unsqueeze(1)
    return torch.where((logits < threshold) & ~unlimited, -torch.inf, logits)


def _keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the smallest set of likeliest tokens that has `top_p` [R, 1] of the mass (Holtzman 2020)."""
    if bool((top_p >= 1).all()):
        return probs
    ordered = probs.topk(min(_CANDIDATES, probs.shape[-1]), dim=-1).values
    if bool((ordered.sum(dim=-1, keepdim=True) < top_p).any()):
        ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    kept = (before < top_p).sum(dim=-1, keepdim=True).clamp(min=1)
    threshold = ordered.gather(1, kept - 1)
    return torch.where((probs < threshold) & (top_p < 1), 0.0, probs)
