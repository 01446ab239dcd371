"""The numbers that codes of 4 and 8 bits stand for (`QuantizedWeight`), on GPUs: those of a tile, or a whole weight.

A code becomes a number without a conversion: in the first bits of the fraction of the float32 2 ** BITS it makes that
2 ** BITS + code, of which one multiplication with an addition makes the number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.fp8 import e4m3_tile, for_kernels

_WORD_BITS = 32
_SIGN = 128
BYTES_SIGNS = tl.constexpr(-2139062144)
"""0x80808080: the signs of four codes of 8 bits."""


@triton.jit
def factors(
    scale,
    zero,
    minimum,
    super_scale,
    super_minimum,
    rows,
    group,
    real,
    groups,
    OFFSET: tl.constexpr,
    SUPER: tl.constexpr,  # groups that share a factor of their scales
):
    """Return factor and summand, float32, that make the number of 2 ** BITS + code; 0 where not `real`.

    A value is loaded for each word, or for each column with act-order, where neighbours have any groups. Products load
    one for each group instead, and spread it in registers (`scales_of` in quantized_linear.py): they wait for these
    loads in each turn of their loop.
    """
    places = rows * groups + group
    supers = rows * (groups // SUPER) + group // SUPER
    factor = tl.load(scale + places, mask=real, other=0).to(tl.float32)
    if super_scale is not None:
        factor *= tl.load(super_scale + supers, mask=real, other=0).to(tl.float32)
    summand = factor * -OFFSET
    if zero is not None:
        summand -= tl.load(zero + places, mask=real, other=0).to(tl.float32) * factor
    if minimum is not None:
        least = tl.load(minimum + places, mask=real, other=0).to(tl.float32)
        if super_minimum is not None:
            least *= tl.load(super_minimum + supers, mask=real, other=0).to(tl.float32)
        summand += least
    return factor, summand


@triton.jit
def plane(word, factor, summand, PLACE: tl.constexpr, BITS: tl.constexpr, dtype: tl.constexpr):
    """Return the number of the code at PLACE of each word."""
    MOVE: tl.constexpr = 23 - BITS - BITS * PLACE
    moved = word << MOVE if MOVE >= 0 else word >> -MOVE
    bits = (moved & (((1 << BITS) - 1) << (23 - BITS))) | ((127 + BITS) << 23)
    return (bits.to(tl.float32, bitcast=True) * factor + summand).to(dtype)


@triton.jit
def in_column_order(a, b, c, d, BITS: tl.constexpr):
    """Return [N, W * codes] of the numbers at the first four places of words, [N, W] each.

    With codes of 4 bits these are [N, W, 2], each number with the one four places above it.
    `join` makes a new last dimension, so that what is joined last alternates first.
    """
    joined = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(joined, [a.shape[0], a.shape[1] * (32 // BITS)])


@triton.jit
def numbers_of(word, factor, summand, BITS: tl.constexpr, dtype: tl.constexpr):
    """Return the numbers [N, W * codes] of words [N, W], the lowest code of a word first."""
    if BITS == 4:
        a = tl.join(plane(word, factor, summand, 0, 4, dtype), plane(word, factor, summand, 4, 4, dtype))
        b = tl.join(plane(word, factor, summand, 1, 4, dtype), plane(word, factor, summand, 5, 4, dtype))
        c = tl.join(plane(word, factor, summand, 2, 4, dtype), plane(word, factor, summand, 6, 4, dtype))
        d = tl.join(plane(word, factor, summand, 3, 4, dtype), plane(word, factor, summand, 7, 4, dtype))
    else:
        a = plane(word, factor, summand, 0, 8, dtype)
        b = plane(word, factor, summand, 1, 8, dtype)
        c = plane(word, factor, summand, 2, 8, dtype)
        d = plane(word, factor, summand, 3, 8, dtype)
    return in_column_order(a, b, c, d, BITS)


@triton.jit
def number_tile(
    codes,  # [N, words] int32
    scale,  # [N, groups], as the next two
    zero,
    minimum,
    super_scale,  # [N, groups / SUPER], as the next
    super_minimum,
    column_groups,  # [K], None: consecutive columns share a scale
    rows,  # [BLOCK_N, 1]
    inside,  # [BLOCK_N, 1], whether the weight has the row
    first,
    words,
    groups,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,  # columns that share a scale, 0: all of a row
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_K: tl.constexpr,
    dtype: tl.constexpr,
):
    """Return the numbers [BLOCK_N, BLOCK_K] of some rows from column `first` on; zeros beyond the weight."""
    CODES: tl.constexpr = 32 // BITS
    places = first // CODES + tl.arange(0, BLOCK_K // CODES)[None, :]
    word = tl.load(codes + rows * words + places, mask=inside & (places < words), other=0)
    if SIGNED:
        word = word ^ BYTES_SIGNS
    if column_groups is not None:
        columns = first + tl.arange(0, BLOCK_K)[None, :]
        real = columns < words * CODES
        group = tl.load(column_groups + columns, mask=real, other=0)
        plain = numbers_of(word, 1.0, 0.0, BITS, tl.float32)
        factor, summand = factors(
            scale, zero, minimum, super_scale, super_minimum, rows, group, inside & real, groups, OFFSET, SUPER
        )
        return (plain * factor + summand).to(dtype)
    if GROUP == 0:
        group, real = 0, inside
    elif GROUP % BLOCK_K == 0:
        group, real = first // GROUP, inside
    else:
        group, real = places * CODES // GROUP, inside & (places < words)
    factor, summand = factors(
        scale, zero, minimum, super_scale, super_minimum, rows, group, real, groups, OFFSET, SUPER
    )
    return numbers_of(word, factor, summand, BITS, dtype)


@triton.jit
def dequantize_kernel(
    output,  # [N, K], contiguous
    codes,
    scale,
    zero,
    minimum,
    super_scale,
    super_minimum,
    column_groups,
    N,
    K,
    words,
    groups,
    BITS: tl.constexpr,
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program writes [BLOCK_N, BLOCK_K] numbers of the weight."""
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    first = tl.program_id(1) * BLOCK_K
    if codes.dtype.element_ty.primitive_bitwidth == 8:  # e4m3 or its bits
        numbers = e4m3_tile(codes, scale, n, n < N, first, K, groups, GROUP, BLOCK_K, output.dtype.element_ty)
    else:
        numbers = number_tile(
            codes, scale, zero, minimum, super_scale, super_minimum, column_groups, n, n < N, first, words, groups,
            BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_K, output.dtype.element_ty,
        )  # fmt: skip
    places = first + tl.arange(0, BLOCK_K)[None, :]
    tl.store(output + n * K + places, numbers, mask=(n < N) & (places < K))


def can_dequantize(weight: QuantizedWeight) -> bool:
    """Return True if `dequantize` knows all codes: rows and groups consist of complete words."""
    return all(
        part.columns % (_WORD_BITS // part.bits) == 0
        and (one_group(part) or part.column_groups is not None or (part.group or 0) % (_WORD_BITS // part.bits) == 0)
        for part in weight.parts
    )


def one_group(part: QuantizedPart) -> bool:
    """Return True if all columns of a row share a scale."""
    return part.column_groups is None and (part.group is None or part.group >= part.columns)


def dequantize(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the numbers [out, in] of a weight, of which `can_dequantize` must be true, in `dtype`."""
    output = torch.empty(weight.rows, weight.columns, dtype=dtype, device=weight.parts[0].codes.device)
    block_n, block_k = 32, 128
    for rows, arguments, constants in sections(weight):
        numbers = output[rows]
        dequantize_kernel[triton.cdiv(len(numbers), block_n), triton.cdiv(weight.columns, block_k)](
            numbers, *arguments, *numbers.shape, *widths(arguments), **constants, BLOCK_N=block_n, BLOCK_K=block_k
        )
    return output


def widths(weight: list[Tensor | None]) -> tuple[int, int]:
    """Return the words and the groups of a row."""
    codes, scale = cast("list[Tensor]", weight[:2])
    return codes.shape[1], scale.shape[1]


def sections(weight: QuantizedWeight) -> Iterator[tuple[slice, list[Tensor | None], dict[str, Any]]]:
    """Yield rows that one launch computes, with the kernels' tensors and constants of them."""
    start = 0
    for part in weight.parts:
        first = 0
        for index, count in enumerate(part.sections or (len(part.codes),)):
            own = slice(first, first + count)
            tensors = (part.scale, part.zero, part.minimum, part.super_scale, part.super_minimum)
            order = None if part.column_groups is None else part.column_groups[index]
            codes = part.codes[own]
            codes = for_kernels(codes) if codes.is_floating_point() else codes.view(torch.int32)
            arguments = [codes, *(None if it is None else it[own] for it in tensors), order]
            if count:
                yield slice(start + first, start + first + count), arguments, _constants(part)
            first += count
        start += first


def _constants(part: QuantizedPart) -> dict[str, Any]:
    """Return the compile-time constants of a part's codes."""
    signed = part.codes.dtype == torch.int8
    supers = 1 if part.super_scale is None else part.scale.shape[1] // part.super_scale.shape[1]
    return {
        "BITS": part.bits,
        "SIGNED": signed,
        "GROUP": 0 if one_group(part) else part.group or part.columns,
        "SUPER": supers,
        "OFFSET": part.offset + (1 << part.bits) + _SIGN * signed,
    }
