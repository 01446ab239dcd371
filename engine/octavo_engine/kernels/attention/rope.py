"""Rotary position embedding (arXiv 2104.09864): dimensions (i, i + D/2) of a head are rotated together, in float32.

Angles are float32 and products are rounded once, at their end; Hugging Face rounds cosines, sines and both products to
the model's type first, which costs it accuracy and saves us nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE_HALVES = 256
"""Elements of a program's half heads: 8 for each lane of its one warp, so that each reads and writes 16 bytes."""


@triton.jit
def tile_of_heads(tile, count, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, TILE: tl.constexpr):
    """Return the offsets of the first halves of TILE heads, [TILE, HALF_PADDED], and which of them exist."""
    head = tile * TILE + tl.arange(0, TILE)
    columns = tl.arange(0, HALF_PADDED)
    inside = (head < count)[:, None] & (columns < HALF)[None, :]
    return head[:, None] * (2 * HALF) + columns[None, :], inside


@triton.jit
def for_each_head(row, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, TILE: tl.constexpr):
    """Return HALF elements of `row` for each of TILE heads, [TILE, HALF_PADDED] float32.

    Loaded as often as there are heads: from the cache, at once where each lane needs them, where a row loaded once
    would have to pass through shared memory.
    """
    columns = tl.arange(0, HALF_PADDED)[None, :] + tl.zeros([TILE, 1], dtype=tl.int32)
    return tl.load(row + columns, mask=columns < HALF, other=0.0).to(tl.float32)


@triton.jit
def rotated(first, second, cos, sin, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, TILE: tl.constexpr):
    """Both halves of TILE heads of one token, rotated by its HALF angles; float32."""
    c = for_each_head(cos, HALF, HALF_PADDED, TILE)
    s = for_each_head(sin, HALF, HALF_PADDED, TILE)
    first, second = first.to(tl.float32), second.to(tl.float32)
    return first * c - second * s, second * c + first * s


@triton.jit
def rope_kernel(
    heads,  # [T, COUNT, 2 * HALF], a token's in one piece
    cos,  # [T, HALF] float32
    sin,
    token_stride,
    COUNT: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program rotates TILE heads of one token in place."""
    token = tl.program_id(0).to(tl.int64)
    offsets, inside = tile_of_heads(tl.program_id(1), COUNT, HALF, HALF_PADDED, TILE)
    place = heads + token * token_stride + offsets
    first, second = tl.load(place, mask=inside), tl.load(place + HALF, mask=inside)
    a, b = rotated(first, second, cos + token * HALF, sin + token * HALF, HALF, HALF_PADDED, TILE)
    tl.store(place, a.to(first.dtype), mask=inside)
    tl.store(place + HALF, b.to(first.dtype), mask=inside)


def rope(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate heads [T, N, D] in place by the angles of cos and sin, float32, contiguous, T * D/2 elements.

    A token's heads are contiguous, tokens any distance apart.
    """
    tokens, count, head_dim = heads.shape
    if tokens and count:
        padded, tile = tile_shape(head_dim)
        grid = (tokens, triton.cdiv(count, tile))
        rope_kernel[grid](
            heads,
            cos,
            sin,
            heads.stride(0),
            COUNT=count,
            HALF=head_dim // 2,
            HALF_PADDED=padded,
            TILE=tile,
            num_warps=1,
        )


def tile_shape(head_dim: int) -> tuple[int, int]:
    """Return the elements of a padded half head, and the heads of a program."""
    padded = triton.next_power_of_2(head_dim // 2)
    return padded, max(1, _TILE_HALVES // padded)
