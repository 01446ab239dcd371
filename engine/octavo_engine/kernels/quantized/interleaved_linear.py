"""Matrix multiplication with interleaved weights of 4 bits (interleaved.py), for up to 64 tokens on GPUs.

A tile of the weight is the product's first operand, in registers, and all tokens are the second one: numbers that are
made of codes are multiplied where they are, without a way through shared memory, and once for all tokens. With groups
of 128 columns 16-bit differences of code and zero, which are exact, are multiplied, and their sums are scaled; with
groups of 32 numbers are rounded to the type of the activations first. Sums are float32.
"""

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart
from octavo_engine.kernels.quantized.interleaved import (
    TILE,
    arguments,
    differences,
    group_of,
    half_words,
    of_four_groups,
    ones_of,
    scale_and_zero,
    scale_in,
    scaled,
)
from octavo_engine.kernels.quantized.split_columns import Tiles, multiply_split, store_product


@triton.jit(do_not_specialize=["M"])
def interleaved_linear_kernel(
    output,  # [M, N] rows output_stride apart; SPLIT: float32 [programs(1), M, N]
    x,  # [M, K], rows x_stride apart, of 16 bits
    codes,  # int16 [K / 128, N, 32]
    scale,  # int32 [groups, N]; with a minimum as that is
    minimum,  # [K / 128, N, 4]; None: none
    bias,  # [N], None: none
    M,
    N,
    K,
    columns,  # of one program, a multiple of 128
    x_stride,
    output_stride,
    GROUP: tl.constexpr,  # columns that share a scale, a multiple of 128; with a minimum 32
    BLOCK_M: tl.constexpr,  # M or more
    BLOCK_N: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One program computes [M, BLOCK_N] of the product over some columns, or adds them to `output` if ADDS."""
    m = tl.arange(0, BLOCK_M)
    first_row = tl.program_id(0) * BLOCK_N
    rows = first_row + tl.arange(0, BLOCK_N)[:, None]
    start = tl.program_id(1) * columns
    dtype: tl.constexpr = x.dtype.element_ty
    total = tl.zeros([BLOCK_N, BLOCK_M], dtype=tl.float32)
    if minimum is None:
        coming = scale_and_zero(scale, rows, min(start, K - 128) // GROUP, N)
    for first in range(start, min(start + columns, K), 128):
        places = first + tl.arange(0, 128)[:, None]
        right = tl.load(x + m[None, :] * x_stride + places, mask=m[None, :] < M, other=0.0)
        half = half_words(codes, first // 128, first_row, N, BLOCK_N)
        if minimum is None:
            # Zeros are subtracted before the product, and sums are scaled after it, in registers of other threads: the
            # word is loaded for both, for the sums one turn ahead, so that they need not wait for it.
            present = coming
            coming = scale_and_zero(scale, rows, min(first + 128, K - 128) // GROUP, N)
            word = scale_and_zero(scale, rows, first // GROUP, N)
            zero = ((word & 0xFF) | ones_of(dtype)).to(tl.int16).to(dtype, bitcast=True)
            total += tl.dot(differences(half, zero, dtype), right) * scale_in(present)
        else:
            s0, s1, s2, s3 = of_four_groups(scale, rows, first // 128, N)
            m0, m1, m2, m3 = of_four_groups(minimum, rows, first // 128, N)
            left = scaled(
                half, s0.to(dtype), s1.to(dtype), s2.to(dtype), s3.to(dtype),
                m0.to(dtype), m1.to(dtype), m2.to(dtype), m3.to(dtype), dtype,
            )  # fmt: skip
            total = tl.dot(left, right, total)
    n = (first_row + tl.arange(0, BLOCK_N)).to(tl.int64)
    store_product(tl.trans(total), output, bias, m[:, None], n, M, N, output_stride, tl.program_id(1), SPLIT, ADDS)


def tiles_for(tokens: int, *, minimum: bool) -> Tiles:
    """Return tiles for so many tokens, up to 64: all of them in one tile.

    Measured for the linears of 8B at 1, 16 and 64 tokens (H200, 2026-11-28). With groups of 128, tiles of 128 rows and
    264 programs, two for each of its 132 multiprocessors, took 55, 57 and 89 us a layer, of 64 rows and 528 programs
    60, 60 and 106. With groups of 32 and a minimum these took 73, 75 and 99, and 65, 66 and 119.
    """
    small = minimum and tokens <= 16
    return Tiles(
        tokens=16 if tokens <= 16 else 32 if tokens <= 32 else 64,
        rows=64 if small else 128,
        columns=TILE,
        warps=4,
        stages=4 if tokens <= 16 else 3,
        programs=528 if small else 264,
    )


def multiply_interleaved(output: Tensor, x: Tensor, part: QuantizedPart, bias: Tensor | None, *, adds: bool) -> None:
    """Write x [T, in] times an interleaved part [rows, in], transposed, into `output` [T, rows], or add it."""
    cut = tiles_for(len(x), minimum=part.minimum is not None)
    launch = partial(_launch, x, part, cut)
    multiply_split(output, part.columns, cut, bias, launch, adds=adds)


def _launch(
    x: Tensor,
    part: QuantizedPart,
    cut: Tiles,
    target: Tensor,
    bias: Tensor | None,
    columns: int,
    splits: int,
    *,
    adds: bool,
) -> None:
    rows = len(part.codes)
    interleaved_linear_kernel[triton.cdiv(rows, cut.rows), splits](
        target,
        x,
        *arguments(part),
        bias,
        len(x),
        rows,
        part.columns,
        columns,
        x.stride(0),
        target.stride(-2),
        GROUP=group_of(part),
        BLOCK_M=cut.tokens,
        BLOCK_N=cut.rows,
        SPLIT=splits > 1,
        ADDS=adds,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
