"""FP8 (e4m3: 4 bits of exponent, 3 of mantissa, largest 448) in kernels, and activations quantized to it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.gpu_limits import converts_fp8

FP8_MAX = tl.constexpr(448.0)
_LEAST = tl.constexpr(1e-30)
"""Rows of smaller numbers become 0: the inverse of their scale would leave float32's range."""
PART = 1024
"""Columns of a program where no scale is for more of them: 8 a thread, 16 bytes of bfloat16."""


@triton.jit
def to_fp8(x):
    """Convert float32 to e4m3; numbers that are too large become the largest number, NaN stays NaN."""
    # The hardware's conversion saturates by itself, the interpreter's does not.
    return tl.clamp(x, -FP8_MAX, FP8_MAX, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def bits_of_fp8(x):
    """Return the bits of `to_fp8(x)`, uint8, on GPUs that do not convert to e4m3."""
    size = tl.minimum(tl.abs(x), FP8_MAX)
    bits = size.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)  # ties to even; exponents from -7, not -127
    # Below 2 ** -6 numbers are 2 ** -9 apart, as far as the last bit of 2 ** 14 counts: the addition rounds.
    small = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    code = tl.where(size < 0.015625, small, rounded)
    code = tl.where(x == x, code, 0x7F)  # noqa: PLR0124 - only what is no number differs from itself
    return (code | ((x.to(tl.int32, bitcast=True) >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def of_fp8(x, dtype: tl.constexpr):
    """Return numbers that are e4m3, or uint8 of their bits, in `dtype`; of any other type they are converted."""
    if x.dtype == tl.uint8:
        bits = x.to(tl.int16)
        # As float16, whose exponents count from 15 instead of 7, they are 2 ** 8 times too small.
        half = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
        result = tl.where((bits & 0x7F) == 0x7F, float("nan"), half).to(dtype)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def e4m3_tile(
    numbers,  # [.., columns] of e4m3, or of their bits
    scales,  # [.., groups] float32
    rows,  # int64 [BLOCK_N, 1]
    known,  # [BLOCK_N, 1], whether the weight has the row
    first,
    columns,
    groups,
    GROUP: tl.constexpr,  # columns that share a scale, 0: all of a row
    BLOCK: tl.constexpr,
    dtype: tl.constexpr,
):
    """Weights [BLOCK_N, BLOCK] from column `first` on, scaled in float32 and rounded once; zeros beyond the weight."""
    places = first + tl.arange(0, BLOCK)[None, :]
    real = known & (places < columns)
    found = of_fp8(tl.load(numbers + rows * columns + places, mask=real, other=0.0), tl.float32)
    if GROUP == 0:
        scale = tl.load(scales + rows, mask=known, other=0.0)
    elif GROUP % BLOCK == 0:
        scale = tl.load(scales + rows * groups + first // GROUP, mask=known, other=0.0)
    else:
        scale = tl.load(scales + rows * groups + places // GROUP, mask=real, other=0.0)
    return (found * scale).to(dtype)


def for_kernels(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as kernels on its device take it: e4m3 as its bits, uint8, where they do not convert it."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn and not converts_fp8(x.device) else x


@triton.jit
def store_quantized(
    output,  # [T, SIZE] e4m3, contiguous
    scales,  # [T, SIZE / GROUP] float32, contiguous
    values,  # [PART] float32, zeros beyond SIZE
    given,  # [1] float32, the scale to take, or None
    row,
    part,
    SIZE: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,  # divides PART; PART itself where that is the whole row
):
    """Write a part of a row as e4m3 with a scale for each group: values = quantized * scale."""
    groups = tl.reshape(values, (PART // GROUP, GROUP))
    if given is None:
        scale = tl.maximum(tl.max(tl.abs(groups), axis=1), _LEAST) / FP8_MAX
    else:
        scale = tl.zeros((PART // GROUP,), tl.float32) + tl.load(given)
    # One division a group: one an element takes longer than all else that is done with it.
    inverse = 1.0 / scale
    quantized = tl.reshape(to_fp8(groups * inverse[:, None]), (PART,))
    columns = part * PART + tl.arange(0, PART)
    tl.store(output + row * SIZE + columns, quantized, mask=columns < SIZE)
    places = part * (PART // GROUP) + tl.arange(0, PART // GROUP)
    count = (SIZE + GROUP - 1) // GROUP
    tl.store(scales + row * count + places, scale, mask=places < count)


@triton.jit
def quantize_kernel(
    x,  # [T, SIZE], rows x_stride apart
    given,  # [1] float32, the scale to take, or None
    output,  # [T, SIZE] e4m3
    scales,  # [T, SIZE / GROUP] float32
    x_stride,
    SIZE: tl.constexpr,
    PART: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program quantizes one part of one token."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = part * PART + tl.arange(0, PART)
    values = tl.load(x + row * x_stride + columns, mask=columns < SIZE, other=0).to(tl.float32)
    store_quantized(output, scales, values, given, row, part, SIZE, PART, GROUP)


def quantize(x: torch.Tensor, scaling: Scaling) -> Quantized:
    """Quantize x [T, N] to e4m3 with the wanted scaling."""
    tokens, size = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    result = empty_quantized(tokens, size, scaling, x.device)
    if tokens:
        part, group = parts(size, scaling)
        quantize_kernel[(tokens, triton.cdiv(size, part))](
            x,
            scaling.given,
            result.values,
            result.scales,
            x.stride(0),
            SIZE=size,
            PART=part,
            GROUP=group,
            num_warps=min(16, max(1, part // 512)),
        )
    return result


def parts(size: int, scaling: Scaling) -> tuple[int, int]:
    """Return a program's columns and a group's, for rows of `size`; one program takes all of a row with one scale."""
    if scaling.group is not None:
        return PART, scaling.group
    padded = triton.next_power_of_2(size)
    return padded, padded


def empty_quantized(tokens: int, size: int, scaling: Scaling, device: torch.device) -> Quantized:
    """Allocate the result of a kernel that quantizes [tokens, size] numbers."""
    groups = 1 if scaling.group is None else size // scaling.group
    return Quantized(
        torch.empty(tokens, size, dtype=torch.float8_e4m3fn, device=device),
        torch.empty(tokens, groups, dtype=torch.float32, device=device),
    )
