"""Tiles of the weights of experts that stay in 4 or 8 bits: MXFP4, e4m3 with scales, and codes (`QuantizedWeight`)."""

from __future__ import annotations

import triton
import triton.language as tl

from octavo_engine.kernels.fp8 import e4m3_tile
from octavo_engine.kernels.quantized.quantized_numbers import number_tile


@triton.jit
def dequantized(codes, exponents, dtype: tl.constexpr):
    """Numbers [N, 2 * M] of MXFP4's codes [N, M], two in each byte, the first in the lower half, times 2 ** (e - 127).

    A code is a sign, an exponent of two bits and one of the fraction: 0, 1/2, 1, 3/2, 2, 3, 4, 6. Moved into float16's
    places they are these numbers times 2 ** -14, as the exponents' biases are 1 and 15. All are exact in any type. The
    smallest scale, 2 ** -127, counts as 0.
    """
    codes = codes.to(tl.int16)
    pairs = tl.join(codes, codes >> 4)
    numbers = (((pairs & 8) << 12) | ((pairs & 7) << 9)).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0
    exponents = exponents.to(tl.int32)
    scales = (exponents << 23).to(tl.float32, bitcast=True)
    scales = tl.where(exponents == 255, float("nan"), scales)
    numbers = numbers * scales[:, :, None]
    return tl.reshape(numbers, [codes.shape[0], 2 * codes.shape[1]]).to(dtype)


@triton.jit
def mxfp4_tile(codes, scales, rows, known, first, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, dtype: tl.constexpr):
    """Weights [len(rows), BLOCK] from column `first` on, of codes [.., COLUMNS / 2] and scales [.., COLUMNS / 32]."""
    places = first // 2 + tl.arange(0, BLOCK // 2)
    real = known[:, None] & (places < COLUMNS // 2)[None, :]
    pairs = tl.load(codes + rows[:, None] * (COLUMNS // 2) + places[None, :], mask=real, other=0)
    exponents = tl.load(scales + rows[:, None] * (COLUMNS // 32) + (places // 16)[None, :], mask=real, other=0)
    return dequantized(pairs, exponents, dtype)


@triton.jit
def stored_tile(
    weights,
    scales,
    zero,
    minimum,
    super_scale,
    super_minimum,
    rows,  # int64
    known,
    first,
    COLUMNS: tl.constexpr,
    BITS: tl.constexpr,  # of a code, 0: MXFP4
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
    dtype: tl.constexpr,
):
    """Weights [len(rows), BLOCK] from column `first` on, of whatever form the experts have; zeros for others than
    `known` rows and beyond the last column."""
    groups: tl.constexpr = 1 if GROUP == 0 else (COLUMNS + GROUP - 1) // GROUP
    if BITS == 0:
        tile = mxfp4_tile(weights, scales, rows, known, first, COLUMNS, BLOCK, dtype)
    elif weights.dtype.element_ty.primitive_bitwidth == 8:
        tile = e4m3_tile(
            weights, scales, rows[:, None], known[:, None], first, COLUMNS, groups, GROUP, BLOCK, dtype
        )  # fmt: skip
    else:
        words: tl.constexpr = COLUMNS * BITS // 32
        tile = number_tile(
            weights, scales, zero, minimum, super_scale, super_minimum, None, rows[:, None], known[:, None], first,
            words, groups, BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK, dtype,
        )  # fmt: skip
    return tile
