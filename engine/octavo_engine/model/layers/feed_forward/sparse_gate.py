"""Sparse gates of a feed-forward: all but the largest are set to zero (arXiv 2506.06644, as Gemma 3n does it)."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

from octavo_engine.model.checkpoint.tensors import Span
from octavo_engine.model.layers.options import LayerOptions


def above_quantile(gate: Tensor, inner: Span, sparsity: float, options: LayerOptions) -> Tensor:
    """Return how far this rank's part of each token's gates [T, N] exceeds a quantile of all gates, at least 0.

    The quantile is that of a normal distribution with the mean and the standard deviation of all ranks' gates, `inner`
    of them; `sparsity` is the share below it.
    """
    all_reduce, wide = options.ranks.all_reduce, gate.float()
    mean = all_reduce(wide.sum(-1, keepdim=True)) / inner.total
    variance = all_reduce((wide - mean).square().sum(-1, keepdim=True)) / inner.total
    cutoff = mean + variance.sqrt() * NormalDist().inv_cdf(sparsity)
    return torch.relu(wide - cutoff).to(gate.dtype)
