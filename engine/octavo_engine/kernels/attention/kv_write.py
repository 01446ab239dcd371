"""Prepares a step's heads for attention, in one pass over the fused projection.

Heads of query and key are normalised (Qwen3), then rotated (rope.py); queries stay where they are, keys and values go
into their slots of the paged cache, as FP8 if that is what it holds.

Moves 2 (H + 2 K) D s bytes a token, and 4 D for its angles: 24.5 KiB for Llama-8B in bfloat16. A token's heads are
divided among programs of one warp, 12 for Llama-8B, so that a decode step of one token takes little more than a launch.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.attention.rope import for_each_head, rotated, tile_of_heads, tile_shape
from octavo_engine.kernels.fp8 import bits_of_fp8, for_kernels, to_fp8

_WRITTEN_AT_ONCE = 256
"""Elements of a key that a program of one warp writes: 8 for each lane, 16 bytes of bfloat16."""


@triton.jit
def normalised(first, second, weight, eps, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, TILE: tl.constexpr):
    """Return both halves of TILE heads, each head divided by its root mean square, times `weight` [2 * HALF].

    Rounded where Hugging Face's Qwen3 does: normalised, and multiplied.
    """
    first_weight = for_each_head(weight, HALF, HALF_PADDED, TILE)
    second_weight = for_each_head(weight + HALF, HALF, HALF_PADDED, TILE)
    a, b = first.to(tl.float32), second.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / (2 * HALF) + eps)[:, None]
    a, b = (a * inverse).to(first.dtype).to(tl.float32), (b * inverse).to(first.dtype).to(tl.float32)
    return (a * first_weight).to(first.dtype), (b * second_weight).to(first.dtype)


@triton.jit
def cached(x, cache, scale):
    """Return x in the cache's type: rounded to it, or divided by `scale` and rounded to e4m3, perhaps as bits."""
    if cache.dtype.element_ty == tl.float8e4nv:
        result = to_fp8(tl.div_rn(x.to(tl.float32), scale))
    elif cache.dtype.element_ty == tl.uint8:
        result = bits_of_fp8(tl.div_rn(x.to(tl.float32), scale))
    else:
        result = x.to(cache.dtype.element_ty)
    return result


@triton.jit
def write_heads_kernel(
    heads,  # [T, H + 2 K, D]: queries, keys, values of a token in one piece
    key_cache,  # [num_blocks, B, K, D], contiguous; the type of heads or e4m3
    value_cache,
    slots,  # [T] int64, -1: nowhere
    cos,  # [T, D / 2] float32
    sin,
    query_norm,  # [D]
    key_norm,
    eps,
    key_scale,
    value_scale,
    token_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,  # D / 2
    HALF_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    NORM: tl.constexpr,
):
    """One program takes TILE heads of one token, all of the query, of the key or of the value."""
    QUERY_TILES: tl.constexpr = (HEADS + TILE - 1) // TILE
    KEY_TILES: tl.constexpr = (KV_HEADS + TILE - 1) // TILE
    ROW: tl.constexpr = KV_HEADS * 2 * HALF
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    source = heads + token * token_stride
    if tile < QUERY_TILES:
        offsets, inside = tile_of_heads(tile, HEADS, HALF, HALF_PADDED, TILE)
        first = tl.load(source + offsets, mask=inside, other=0.0)
        second = tl.load(source + offsets + HALF, mask=inside, other=0.0)
        if NORM:
            first, second = normalised(first, second, query_norm, eps, HALF, HALF_PADDED, TILE)
        a, b = rotated(first, second, cos + token * HALF, sin + token * HALF, HALF, HALF_PADDED, TILE)
        tl.store(source + offsets, a.to(first.dtype), mask=inside)
        tl.store(source + offsets + HALF, b.to(first.dtype), mask=inside)
        return
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    source += HEADS * 2 * HALF
    if tile < QUERY_TILES + KEY_TILES:
        offsets, inside = tile_of_heads(tile - QUERY_TILES, KV_HEADS, HALF, HALF_PADDED, TILE)
        first = tl.load(source + offsets, mask=inside, other=0.0)
        second = tl.load(source + offsets + HALF, mask=inside, other=0.0)
        if NORM:
            first, second = normalised(first, second, key_norm, eps, HALF, HALF_PADDED, TILE)
        a, b = rotated(first, second, cos + token * HALF, sin + token * HALF, HALF, HALF_PADDED, TILE)
        place = key_cache + slot * ROW + offsets
        tl.store(place, cached(a.to(first.dtype), key_cache, key_scale), mask=inside)
        tl.store(place + HALF, cached(b.to(first.dtype), key_cache, key_scale), mask=inside)
    else:
        source += ROW
        offsets, inside = tile_of_heads(tile - QUERY_TILES - KEY_TILES, KV_HEADS, HALF, HALF_PADDED, TILE)
        first = tl.load(source + offsets, mask=inside)
        second = tl.load(source + offsets + HALF, mask=inside)
        place = value_cache + slot * ROW + offsets
        tl.store(place, cached(first, value_cache, value_scale), mask=inside)
        tl.store(place + HALF, cached(second, value_cache, value_scale), mask=inside)


def write_heads(
    heads: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    norms: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> Tensor:
    """Rotate the queries and keys of `heads` [T, H + 2 K, D], write keys and values to `slots` [T]; queries [T, H, D].

    The queries returned are a view of `heads`, rotated in place; keys and values in it are left as they were. Caches
    [num_blocks, B, K, D] are of heads' type, or float8_e4m3fn holding what was divided by the scales. Slot -1 is
    nowhere. cos and sin are float32, contiguous, T * D/2 elements; `norms` the weights [D] of query and key by which
    each head is normalised first, with `eps`. A token's heads are contiguous, tokens any distance apart.
    """
    tokens, count, head_dim = heads.shape
    kv_heads = key_cache.shape[2]
    num_heads = count - 2 * kv_heads
    query = heads[:, :num_heads]
    if not tokens:
        return query
    padded, tile = tile_shape(head_dim)
    query_norm, key_norm = norms or (None, None)
    write_heads_kernel[(tokens, triton.cdiv(num_heads, tile) + 2 * triton.cdiv(kv_heads, tile))](
        heads,
        for_kernels(key_cache),
        for_kernels(value_cache),
        slots,
        cos,
        sin,
        query_norm,
        key_norm,
        eps,
        key_scale,
        value_scale,
        heads.stride(0),
        HEADS=num_heads,
        KV_HEADS=kv_heads,
        HALF=head_dim // 2,
        HALF_PADDED=padded,
        TILE=tile,
        NORM=norms is not None,
        num_warps=1,
    )
    return query


@triton.jit
def write_kv_kernel(
    key,  # [T, ROW], rows key_stride apart
    value,  # None: keys alone are written
    key_cache,  # [num_blocks * B, ROW], contiguous; the type of key or e4m3
    value_cache,
    slots,  # [T] int64, -1: nowhere
    key_scale,
    value_scale,
    key_stride,
    value_stride,
    ROW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program writes BLOCK elements of one token's key and value."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < ROW
    place = slot * ROW + columns
    new_key = tl.load(key + token * key_stride + columns, mask=inside)
    tl.store(key_cache + place, cached(new_key, key_cache, key_scale), mask=inside)
    if value is not None:
        new_value = tl.load(value + token * value_stride + columns, mask=inside)
        tl.store(value_cache + place, cached(new_value, value_cache, value_scale), mask=inside)


def write_kv(
    key: Tensor,
    value: Tensor | None,
    key_cache: Tensor,
    value_cache: Tensor | None,
    slots: Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Write keys and values [T, K, D] as they are to `slots` [T], as `write_heads` writes what it has rotated.

    For RoPE and norms that `write_heads` does not know, and for caches of keys alone, where `value` and `value_cache`
    are None. A token's heads are contiguous, tokens any distance apart.
    """
    tokens, kv_heads, head_dim = key.shape
    row = kv_heads * head_dim
    if tokens:
        block = min(_WRITTEN_AT_ONCE, triton.next_power_of_2(row))
        write_kv_kernel[(tokens, triton.cdiv(row, block))](
            key,
            value,
            for_kernels(key_cache),
            None if value_cache is None else for_kernels(value_cache),
            slots,
            key_scale,
            value_scale,
            key.stride(0),
            None if value is None else value.stride(0),
            ROW=row,
            BLOCK=block,
            num_warps=1,
        )
