"""What becomes of the heads of query and key before they attend, and the plain way to compute it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Each head of query and key is divided by its root mean square first, times weights (Qwen3, arXiv 2505.09388)."""

    query: Tensor
    """[D], as the key's."""
    key: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """By what each token's heads are turned (arXiv 2104.09864): dimensions (i, i + D/2) by the i-th angle."""

    cos: Tensor
    """float32 [T, 1, D / 2], contiguous, as the sines."""
    sin: Tensor
    norms: HeadNorms | None = None
    """What comes before, if anything."""


def split_heads(heads: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Query [T, H, D], key and value [T, K, D] of `heads` [T, H + 2 K, D], all of them views."""
    return heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]


def rotated(heads: Tensor, kv_heads: int, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
    """Query [T, H, D] and key [T, K, D], normalised and turned, and the value of `heads` [T, H + 2 K, D]."""
    heads = normalised(heads, kv_heads, rotation.norms)
    turned = rotate(heads[:, :-kv_heads], rotation.cos, rotation.sin)
    return turned[:, :-kv_heads], turned[:, -kv_heads:], heads[:, -kv_heads:]


def normalised(heads: Tensor, kv_heads: int, norms: HeadNorms | None) -> Tensor:
    """`heads` [T, H + 2 K, D] with query and key normalised; themselves if nothing is to be done."""
    if norms is None:
        return heads
    query, key, value = split_heads(heads, kv_heads)
    return torch.cat((rms_norm(query, norms.query, norms.eps), rms_norm(key, norms.key, norms.eps), value), dim=1)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, the first part in float32, then cast, as Hugging Face does it."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The heads of x [T, heads, D] turned in float32, back in x's dtype; angles float32 [T, 1, D / 2]."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
