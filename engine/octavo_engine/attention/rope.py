"""Rotary position embedding (RoPE) of a step's heads, in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rope:
    """The cosines and sines of a step's tokens (arXiv 2104.09864): angle i rotates dimensions (i, i + R/2) of a head.

    If R is less than the head size D, only the first R dimensions of a head are rotated (partial rotary embedding).
    """

    cos: Tensor
    """float32 [T, 1, R / 2], contiguous; the sines likewise."""
    sin: Tensor
    query_scale: Tensor | None = None
    """Factors by which queries are multiplied, float32 [T, 1, 1]; None: 1."""

    @property
    def rotary_dim(self) -> int:
        """R, the number of rotated dimensions of a head."""
        return 2 * self.cos.shape[-1]


def split_heads(heads: Tensor, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split `heads` [T, H + 2 K, D] into query [T, H, D], key and value [T, K, D], all of them views."""
    return heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the first R dimensions of x [T, heads, D] in float32, and return the result in x's dtype."""
    rotated, rest = x[..., : rope.rotary_dim], x[..., rope.rotary_dim :]
    first, second = rotated.float().chunk(2, dim=-1)
    halves = torch.cat((first * rope.cos - second * rope.sin, second * rope.cos + first * rope.sin), dim=-1)
    rotated = halves.to(x.dtype)
    return torch.cat((rotated, rest), dim=-1) if rest.shape[-1] else rotated


def rotate_pairs(x: Tensor, rope: Rope, *, back: bool = False) -> Tensor:
    """Rotate neighbouring pairs of the last R dimensions of x [T, heads, D] in float32; return x's dtype.

    `back` rotates by the negative angles.
    """
    rest, rotated = x[..., : -rope.rotary_dim], x[..., -rope.rotary_dim :]
    first, second = rotated.float().reshape(*rotated.shape[:-1], -1, 2).unbind(-1)
    sin = -rope.sin if back else rope.sin
    pairs = torch.stack((first * rope.cos - second * sin, second * rope.cos + first * sin), dim=-1)
    return torch.cat((rest, pairs.flatten(-2).to(x.dtype)), dim=-1)
