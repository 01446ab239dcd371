"""FP8 (e4m3: 4 bits of exponent, 3 of mantissa, largest 448): how kernels write it, and activations quantized to it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FP8_MAX = tl.constexpr(448.0)
_LEAST = tl.constexpr(1e-30)
"""Rows of smaller numbers become 0: the inverse of their scale would leave float32's range."""


@triton.jit
def to_fp8(x):
    """float32 to e4m3, what is too large to the largest there is; what is no number stays none."""
    # The hardware's conversion saturates by itself, the interpreter's does not.
    return tl.clamp(x, -FP8_MAX, FP8_MAX, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def quantized_row(row):
    """A whole row, float32, as e4m3 and its scale: row = quantized * scale, the largest element 448."""
    largest = tl.maximum(tl.max(tl.abs(row)), _LEAST)
    # One division a row: one an element takes longer than all else that is done with it.
    return to_fp8(row * (FP8_MAX / largest)), largest / FP8_MAX


@triton.jit
def quantize_kernel(
    x,  # [T, N], rows contiguous
    given,  # [1] float32, the scale to take, or None
    quantized,  # [T, N] e4m3, contiguous
    scales,  # [T, groups] float32, contiguous
    x_stride,
    groups,
    GROUP: tl.constexpr,  # N / groups
    GROUP_PADDED: tl.constexpr,
):
    """One program quantizes one group of one token."""
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, GROUP_PADDED)
    inside = columns < GROUP
    values = tl.load(x + token * x_stride + group * GROUP + columns, mask=inside, other=0).to(tl.float32)
    if given is None:
        result, scale = quantized_row(values)
    else:
        scale = tl.load(given)
        result = to_fp8(values * (1.0 / scale))
    place = token * groups + group
    tl.store(quantized + place * GROUP + columns, result, mask=inside)
    tl.store(scales + place, scale)


def quantize_tokens(x: torch.Tensor, given: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [T, N] and float32 scales [T, 1] of x [T, N]: each token's max(|x|) / 448, or the scale `given` ([1])."""
    return _quantize(x, x.shape[1], given)


def quantize_groups(x: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 [T, N] and float32 scales [T, N / group] of x [T, N]: max(|x|) / 448 of each `group` columns of a token."""
    return _quantize(x, group, None)


def _quantize(x: torch.Tensor, group: int, given: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, width = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    quantized = torch.empty(tokens, width, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(tokens, width // group, dtype=torch.float32, device=x.device)
    if tokens:
        padded = triton.next_power_of_2(group)
        quantize_kernel[(tokens, width // group)](
            x,
            given,
            quantized,
            scales,
            x.stride(0),
            width // group,
            GROUP=group,
            GROUP_PADDED=padded,
            num_warps=min(16, max(1, padded // 512)),
        )
    return quantized, scales
