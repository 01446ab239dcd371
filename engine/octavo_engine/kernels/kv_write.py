"""Puts a step's keys and values into their slots of the paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def to_cache(x, inverse_scale, element: tl.constexpr):
    """`x` as a cache of type `element` holds it: FP8 (e4m3) scaled and saturated, where a cast alone may give NaN."""
    if element == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32) * inverse_scale, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    return x.to(element)


@triton.jit
def kv_write_kernel(
    key,  # [T, K, D], heads contiguous
    value,
    key_cache,  # [num_blocks, B, K, D], contiguous
    value_cache,
    slots,  # [T] int64, -1: nowhere
    key_stride,
    value_stride,
    inverse_key_scale,
    inverse_value_scale,
    ROW: tl.constexpr,  # K * D
    ROW_PADDED: tl.constexpr,
):
    """One program copies one token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    columns = tl.arange(0, ROW_PADDED)
    inside = columns < tl.where(slot >= 0, ROW, 0)
    new_key = tl.load(key + token * key_stride + columns, mask=inside)
    new_value = tl.load(value + token * value_stride + columns, mask=inside)
    new_key = to_cache(new_key, inverse_key_scale, key_cache.dtype.element_ty)
    new_value = to_cache(new_value, inverse_value_scale, value_cache.dtype.element_ty)
    tl.store(key_cache + slot * ROW + columns, new_key, mask=inside)
    tl.store(value_cache + slot * ROW + columns, new_value, mask=inside)


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Copy keys and values [T, K, D] to `slots` [T] of caches [num_blocks, B, K, D]; slot -1 is skipped.

    Caches in FP8 (torch.float8_e4m3fn) get key / key_scale and value / value_scale, what is above 448 as 448.
    """
    tokens, heads, head_dim = key.shape
    if not tokens:
        return
    key, value = _heads_contiguous(key), _heads_contiguous(value)
    row = heads * head_dim
    kv_write_kernel[(tokens,)](
        key,
        value,
        key_cache,
        value_cache,
        slots,
        key.stride(0),
        value.stride(0),
        1 / key_scale,
        1 / value_scale,
        ROW=row,
        ROW_PADDED=triton.next_power_of_2(row),
    )


def _heads_contiguous(x: torch.Tensor) -> torch.Tensor:
    """`x` itself if each token's heads lie in one piece, as they do in a slice of the fused projection."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
