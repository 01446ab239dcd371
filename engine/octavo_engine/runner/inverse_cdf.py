"""Drawing tokens by inverting the cumulative distribution, in PyTorch: the way of a CPU.

One random number a row is all it needs. Gumbel noise, the way of a GPU (kernels/sampling.py), needs one for each entry
of the vocabulary, and a CPU takes 2.5 to 3 times as long for it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo_engine.runner.sampling_table import ParameterColumns

_CANDIDATES = 1024
"""The number of likeliest tokens that are sorted for top-p before all are."""
_GROUP = 256
"""Logits whose maximum is looked for together."""


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Numbers in [0, 1), float64, from splitmix64 (Steele, Lea, Flood 2014) over seeds and positions, int64."""
    # NumPy's unsigned integers wrap around and shift without a sign; PyTorch's signed ones do not.
    state = seeds.numpy().view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += (positions.numpy().view(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    for multiplier, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(multiplier)
    bits = (state ^ (state >> np.uint64(31))) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) / (1 << 53))


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


def draw(logits: Tensor, columns: ParameterColumns, numbers: Tensor) -> Tensor:
    """A token [R], int64, for each row of `logits` [R, vocab] on a CPU; no row is greedy.

    Each row draws by its own one of `numbers` [R], in [0, 1).
    """
    logits = logits / columns.temperatures.unsqueeze(1)
    logits = _keep_top_k(logits, columns.top_ks)
    probs = torch.softmax(logits, dim=-1)
    probs = _keep_top_p(probs, columns.top_ps.unsqueeze(1))
    probs = torch.where(probs < columns.min_ps.unsqueeze(1) * probs.amax(dim=-1, keepdim=True), 0.0, probs)
    mass = probs.cumsum(dim=-1)
    target = numbers.float().unsqueeze(1) * mass[:, -1:]
    drawn = torch.searchsorted(mass, target, right=True).squeeze(1)
    # Rounding can push the target onto the last sum: take the last token that has any probability.
    last = (probs > 0).long().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(drawn, last)


def _keep_top_k(logits: Tensor, ks: Tensor) -> Tensor:
    """Forbid all but the k largest logits of each row and their equals; `ks` [R], 0 keeps all."""
    limited = (ks > 0) & (ks < logits.shape[-1])
    largest = int((ks * limited).max())
    if not largest:
        return logits
    index = torch.where(limited, ks, largest).unsqueeze(1) - 1
    threshold = logits.topk(largest, dim=-1).values.gather(1, index)
    return torch.where((logits < threshold) & limited.unsqueeze(1), -torch.inf, logits)


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
