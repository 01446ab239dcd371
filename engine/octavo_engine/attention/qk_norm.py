"""Normalisation of query and key, before or after RoPE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.attention.rope import split_heads
from octavo_engine.kernels.norm_weights import NormWeights


@dataclass(frozen=True, slots=True)
class WholeProjection:
    """The norm is that of a whole projection instead of each head (OLMo2), which ranks may share."""

    query_size: int
    """Elements of a token's query on all ranks."""
    key_size: int
    all_reduce: Callable[[Tensor], Tensor]
    """Sums squares over ranks: from this rank's, float32 [T, 2] of query and key, to those of all ranks."""


@dataclass(frozen=True, slots=True)
class QKNorm:
    """The norms of query and key: each head by itself (Qwen3, arXiv 2505.09388), or all heads of a token."""

    query: NormWeights
    """Weights [D], or [H, D] if each head has its own; the key's are [D] or [K, D]."""
    key: NormWeights
    projection: WholeProjection | None = None
    """None: each head is normalised by itself. Otherwise weights are [H, D] and [K, D], and both norms are RMS norms
    over all heads."""
    after_rope: bool = False
    """Whether query and key are rotated before they are normalised."""
    clip: float | None = None
    """If given, query, key and value are clamped to [-clip, clip] after the norm (OLMoE)."""

    @property
    def is_plain_rms(self) -> bool:
        """True if each head has an RMS norm of its own, with weights that all heads share, and nothing is clamped."""
        plain = self.query.is_plain_rms and self.key.is_plain_rms and self.query.eps == self.key.eps
        return plain and self.projection is None and self.clip is None


def normalise(heads: Tensor, kv_heads: int, norm: QKNorm | None) -> Tensor:
    """Return `heads` [T, H + 2 K, D] with query and key normalised; `heads` itself if there is no norm."""
    if norm is None:
        return heads
    query, key, value = split_heads(heads, kv_heads)
    if norm.projection is None:
        normed = torch.cat((norm.query.apply(query), norm.key.apply(key), value), dim=1)
    else:
        normed = torch.cat((*_over_projections(query, key, norm, norm.projection), value), dim=1)
    return normed if norm.clip is None else normed.clamp_(-norm.clip, norm.clip)


def _over_projections(query: Tensor, key: Tensor, norm: QKNorm, whole: WholeProjection) -> tuple[Tensor, Tensor]:
    """Return query [T, H, D] and key [T, K, D] after an RMS norm over all their heads on all ranks."""
    squares = torch.stack([x.float().square().sum((1, 2)) for x in (query, key)], dim=1)
    sums = whole.all_reduce(squares)
    # Sizes stay numbers on the host: a CUDA graph cannot capture a copy of them to the device.
    means = sums[:, 0] / whole.query_size, sums[:, 1] / whole.key_size
    found = []
    for x, weights, mean in zip((query, key), (norm.query, norm.key), means, strict=True):
        scale = torch.rsqrt(mean + weights.eps)[:, None, None]
        found.append((x.float() * scale * (weights.weight.float() + weights.weight_offset)).to(x.dtype))
    return found[0], found[1]
