"""Matrix multiplication with weights of 4 and 8 bits that share scales by groups (`QuantizedWeight`), for GPUs.

These are codes, or e4m3 where it is not multiplied in 8 bits: on GPUs without that, and with activations of 16 bits.

Up to 64 tokens a program reads words of 32 bits, makes numbers in the type of the activations of their codes, in
registers, and multiplies these in the tensor cores; its columns are split among programs, whose sums a second kernel
adds up in their order. For more tokens it is quicker to write the numbers of the whole weight once and to multiply by
cuBLAS (bench/results/ROOFLINE.md has the measurements). The commonest weights of 4 bits are interleaved when they are
loaded, and multiplied by a quicker kernel (interleaved_linear.py).

A code becomes a number without a conversion, in the first bits of the fraction of a float32: that then is a power of
two plus the code. It is scaled in float32 and rounded once. So products are those with the dequantized weight, up to
the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.fp8 import e4m3_tile
from octavo_engine.kernels.quantized.interleaved_linear import multiply_interleaved
from octavo_engine.kernels.quantized.quantized_numbers import BYTES_SIGNS, numbers_of, one_group, sections, widths
from octavo_engine.kernels.quantized.split_columns import Tiles, multiply_split, store_product

_MOST_TOKENS = 64
"""The most tokens for which codes are multiplied."""
_COLUMNS = 128
"""The columns of a tile."""
_PROGRAMS = 528
"""The most programs that splitting columns gives: four for each of Hopper's 132 multiprocessors."""


@triton.jit
def group_values(values, rows, first, N, groups, GROUP: tl.constexpr, COUNT: tl.constexpr):
    """Return what COUNT groups from column `first` on have, [BLOCK_N, COUNT]; zeros beyond the weight."""
    group = tl.arange(0, COUNT)[None, :] if GROUP == 0 else first // GROUP + tl.arange(0, COUNT)[None, :]
    return tl.load(values + rows * groups + group, mask=(rows < N) & (group < groups), other=0)


@triton.jit
def of_words(values, WORDS: tl.constexpr):
    """Return [N, WORDS], what the group of each word has, of [N, groups]; a single group stays [N, 1]."""
    wide = values
    if values.shape[1] > 1:
        each: tl.constexpr = WORDS // values.shape[1]
        spread = tl.broadcast_to(values[:, :, None], [values.shape[0], values.shape[1], each])
        wide = tl.reshape(spread, [values.shape[0], WORDS])
    return wide


@triton.jit
def scales_of(
    scale,
    super_scale,
    rows,
    first,
    N,
    groups,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,  # groups that share a factor of their scales
    COUNT: tl.constexpr,
):
    """Return the scales, or minima, of COUNT groups, float32 [BLOCK_N, COUNT]; all have one factor if there is one."""
    found = group_values(scale, rows, first, N, groups, GROUP, COUNT).to(tl.float32)
    if super_scale is not None:
        found *= group_values(super_scale, rows, first, N, groups // SUPER, GROUP * SUPER, 1).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["M"])
def quantized_linear_kernel(
    output,  # [M, N] rows output_stride apart; SPLIT: float32 [programs(2), M, N]
    x,  # [M, K], rows x_stride apart, of 16 bits
    codes,  # [N, words] int32; or [N, K] of e4m3 or its bits, which have scales alone
    scale,  # [N, groups], as the next two
    zero,
    minimum,
    super_scale,  # [N, groups / SUPER], as the next
    super_minimum,
    bias,  # [N], None: none
    M,
    N,
    K,
    words,
    groups,
    columns,  # of one program, a multiple of BLOCK_K
    x_stride,
    output_stride,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,  # columns that share a scale, a multiple or a divisor of BLOCK_K; 0: all of a row
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One program computes [BLOCK_M, BLOCK_N] of the product over some columns, or adds them to `output` if ADDS."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    start = tl.program_id(2) * columns
    dtype: tl.constexpr = x.dtype.element_ty
    WORDS: tl.constexpr = BLOCK_K * BITS // 32
    COUNT: tl.constexpr = 1 if GROUP == 0 or GROUP % BLOCK_K == 0 else BLOCK_K // GROUP
    rows = n[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in range(start, min(start + columns, K), BLOCK_K):
        places = first + tl.arange(0, BLOCK_K)[None, :]
        left = tl.load(x + m.to(tl.int64) * x_stride + places, mask=(m < M) & (places < K), other=0.0)
        if codes.dtype.element_ty.primitive_bitwidth == 8:
            right = e4m3_tile(codes, scale, rows, rows < N, first, K, groups, GROUP, BLOCK_K, dtype)
        else:
            places = first * BITS // 32 + tl.arange(0, WORDS)[None, :]
            word = tl.load(codes + rows * words + places, mask=(rows < N) & (places < words), other=0)
            if SIGNED:
                word = word ^ BYTES_SIGNS
            factor = scales_of(scale, super_scale, rows, first, N, groups, GROUP, SUPER, COUNT)
            zeros = tl.zeros([BLOCK_N, 1], dtype=tl.float32)
            if zero is not None:
                zeros = group_values(zero, rows, first, N, groups, GROUP, COUNT).to(tl.float32)
            summand = -(zeros + OFFSET) * factor
            if minimum is not None:
                summand += scales_of(minimum, super_minimum, rows, first, N, groups, GROUP, SUPER, COUNT)
            right = numbers_of(word, of_words(factor, WORDS), of_words(summand, WORDS), BITS, dtype)
        total = tl.dot(left, tl.trans(right), total)
    store_product(total, output, bias, m, n, M, N, output_stride, tl.program_id(2), SPLIT, ADDS)


def tiles_for(tokens: int) -> Tiles:
    """Return tiles for so many tokens, up to 64: all of them in one tile."""
    if tokens <= 16:
        return Tiles(tokens=16, rows=64, columns=_COLUMNS, warps=4, stages=4, programs=_PROGRAMS)
    wide = 32 if tokens <= 32 else 64
    return Tiles(tokens=wide, rows=64, columns=_COLUMNS, warps=4, stages=3, programs=_PROGRAMS)


def most_tokens(weight: QuantizedWeight, dtype: torch.dtype) -> int:
    """Return the most tokens in `dtype` that `quantized_linear` multiplies.

    For more, `dequantize` and cuBLAS are quicker. 0 for float32, where groups are not of consecutive columns, and where
    they and tiles are no multiples of each other.
    """
    known = dtype != torch.float32 and all(_has_tiles(part) for part in weight.parts)
    return _MOST_TOKENS if known else 0


def _has_tiles(part: QuantizedPart) -> bool:
    if part.column_groups is not None:
        return False
    group = _COLUMNS if one_group(part) else part.group or _COLUMNS
    whole = group % _COLUMNS == 0 or _COLUMNS % group == 0
    factors = 1 if part.super_scale is None else part.super_scale.shape[1]
    return whole and (factors == 1 or part.columns // factors % _COLUMNS == 0)


def quantized_linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """Return x [T, in] weight [out, in]^T + bias [out] + addend [T, out], in x's dtype, rounded once.

    The addend is overwritten. `can_dequantize` must be true of the weight, and T at most its `most_tokens`.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    output = torch.empty(len(x), weight.rows, dtype=x.dtype, device=x.device) if addend is None else addend
    for rows, multiply in _parts(x, weight) if len(x) else ():
        multiply(output[:, rows], bias=None if bias is None else bias[rows], adds=addend is not None)
    return output


def _parts(x: Tensor, weight: QuantizedWeight) -> Iterator[tuple[slice, Callable[..., None]]]:
    """Yield rows that one launch computes, with the function that writes the product with them, or adds it."""
    if not weight.interleaved:
        for rows, arguments, constants in sections(weight):
            yield rows, partial(_multiply, x=x, weight=arguments[:-1], constants=constants)
        return
    start = 0
    for part in weight.parts:
        yield slice(start, start + len(part.codes)), partial(multiply_interleaved, x=x, part=part)
        start += len(part.codes)


def _multiply(
    output: Tensor,
    x: Tensor,
    weight: list[Tensor | None],
    constants: dict[str, Any],
    bias: Tensor | None,
    *,
    adds: bool,
) -> None:
    """Write the product with some rows of a weight into `output` [T, rows], or add it."""
    cut = tiles_for(len(x))
    launch = partial(_launch, x, weight, constants, cut)
    multiply_split(output, x.shape[1], cut, bias, launch, adds=adds)


def _launch(
    x: Tensor,
    weight: list[Tensor | None],
    constants: dict[str, Any],
    cut: Tiles,
    target: Tensor,
    bias: Tensor | None,
    columns: int,
    splits: int,
    *,
    adds: bool,
) -> None:
    tokens, rows = target.shape[-2:]
    quantized_linear_kernel[triton.cdiv(tokens, cut.tokens), triton.cdiv(rows, cut.rows), splits](
        target,
        x,
        *weight,
        bias,
        tokens,
        rows,
        x.shape[1],
        *widths(weight),
        columns,
        x.stride(0),
        target.stride(-2),
        **constants,
        BLOCK_M=cut.tokens,
        BLOCK_N=cut.rows,
        BLOCK_K=cut.columns,
        SPLIT=splits > 1,
        ADDS=adds,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
