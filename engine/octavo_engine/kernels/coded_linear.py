"""Matrix multiplication with weights of 4 and 8 bits that share scales by groups (`CodedWeight`), for GPUs.

A program reads words of 32 bits, makes numbers in the type of the activations of their codes, in registers, and
multiplies these in the tensor cores. A code becomes a number without a conversion: in the first bits of the fraction
of the float32 2 ** BITS it makes that 2 ** BITS + code, of which one multiplication with an addition makes the number.
So products are those with the dequantized weight, up to the order of sums.

Few tokens: time goes into reading the weight, and its columns are split among programs, whose sums a second kernel adds
up in their order. More tokens share the numbers of a tile. For many tokens it is quicker to write the numbers of the
whole weight once and to multiply by cuBLAS (bench/results/ROOFLINE.md has the arithmetic).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.cpu.coded import CodedPart, CodedWeight

_MOST_TOKENS, _MOST_IN_ORDER = 256, 16
"""The most tokens for which codes are multiplied; fewer where each column's group is stored, since its numbers take
more to make."""
_WORD_BITS = 32
_SIGN = 128
_BYTES_SIGNS = tl.constexpr(-2139062144)
"""0x80808080: the signs of four codes of 8 bits."""
_PROGRAMS = 256
"""The programs that splitting columns is to give: two for each of Hopper's 132 multiprocessors."""
_LEAST_COLUMNS = 512
"""The fewest columns of a program where columns are split."""
_SUM_COLUMNS = 1024


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
    """Return factor and summand, float32, that make the number of 2 ** BITS + code; 0 where not `real`."""
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
    joined = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.reshape(joined, [word.shape[0], word.shape[1] * (32 // BITS)])


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
    first,
    N,
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
    inside = rows < N
    word = tl.load(codes + rows * words + places, mask=inside & (places < words), other=0)
    if SIGNED:
        word = word ^ _BYTES_SIGNS
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


@triton.jit(do_not_specialize=["M"])
def coded_linear_kernel(
    output,  # [M, N] rows output_stride apart; SPLIT: float32 [programs(2), M, N]
    x,  # [M, K], rows x_stride apart
    codes,
    scale,
    zero,
    minimum,
    super_scale,
    super_minimum,
    column_groups,
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
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT: tl.constexpr,
    ADDS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program computes [BLOCK_M, BLOCK_N] of the product over some columns, or adds them to `output` if ADDS."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    start = tl.program_id(2) * columns
    total = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for first in range(start, min(start + columns, K), BLOCK_K):
        places = first + tl.arange(0, BLOCK_K)[None, :]
        left = tl.load(x + m.to(tl.int64) * x_stride + places, mask=(m < M) & (places < K), other=0.0)
        right = number_tile(
            codes, scale, zero, minimum, super_scale, super_minimum, column_groups, n[:, None], first, N, words, groups,
            BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_K, left.dtype,
        )  # fmt: skip
        total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
    inside = (m < M) & (n < N)[None, :]
    if SPLIT:
        tl.store(output + (tl.program_id(2) * M + m).to(tl.int64) * N + n[None, :], total, mask=inside)
        return
    target = output + m.to(tl.int64) * output_stride + n[None, :]
    if bias is not None:
        total += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    if ADDS:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(output.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["M"])
def sum_kernel(
    output,  # [M, N], rows output_stride apart
    parts,  # float32 [PARTS, M, N]
    bias,  # [N], None: none
    M,
    N,
    output_stride,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADDS: tl.constexpr,
):
    """One program adds up BLOCK columns of one token's sums, and what `output` has if ADDS."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < N
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (part * M + row) * N + columns, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    target = output + row * output_stride + columns
    if ADDS:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(output.dtype.element_ty), mask=inside)


@triton.jit
def decode_kernel(
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
    numbers = number_tile(
        codes, scale, zero, minimum, super_scale, super_minimum, column_groups, n, first, N, words, groups,
        BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_K, output.dtype.element_ty,
    )  # fmt: skip
    places = first + tl.arange(0, BLOCK_K)[None, :]
    tl.store(output + n * K + places, numbers, mask=(n < N) & (places < K))


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile sizes of a product."""

    tokens: int
    rows: int
    columns: int
    warps: int
    stages: int


def tiles_for(tokens: int, *, ordered: bool = False) -> Tiles:
    """Return tiles for so many tokens: all of them in one tile, up to 64. `ordered`: each column's group is stored."""
    if ordered:
        return Tiles(tokens=16, rows=32, columns=64, warps=4, stages=4)
    if tokens <= 16:
        return Tiles(tokens=16, rows=64, columns=128, warps=4, stages=4)
    if tokens <= 64:
        return Tiles(tokens=64, rows=64, columns=128, warps=4, stages=3)
    return Tiles(tokens=128, rows=128, columns=64, warps=8, stages=3)


def splits_for(rows: int, columns: int, cut: Tiles) -> int:
    """Return among how many programs the columns of a weight are split, a power of two up to 8."""
    if cut.tokens > 64:
        return 1
    tiles = -(-rows // cut.rows)
    wanted = min(_PROGRAMS // tiles, columns // _LEAST_COLUMNS, 8)
    return 1 << (max(1, wanted).bit_length() - 1)


def can_multiply(weight: CodedWeight) -> bool:
    """Return True if the kernels know all codes: rows and groups consist of complete words."""
    return all(
        part.columns % (_WORD_BITS // part.bits) == 0
        and (_one_group(part) or part.column_groups is not None or (part.group or 0) % (_WORD_BITS // part.bits) == 0)
        for part in weight.parts
    )


def most_tokens(weight: CodedWeight) -> int:
    """Return the most tokens for which `coded_linear` is quicker than `decode` and a product of cuBLAS."""
    return _MOST_IN_ORDER if any(part.column_groups is not None for part in weight.parts) else _MOST_TOKENS


def _one_group(part: CodedPart) -> bool:
    return part.column_groups is None and (part.group is None or part.group >= part.columns)


def coded_linear(x: Tensor, weight: CodedWeight, bias: Tensor | None, addend: Tensor | None) -> Tensor:
    """Return x [T, in] weight [out, in]^T + bias [out] + addend [T, out], in x's dtype, rounded once.

    The addend is overwritten. `can_multiply` must be true of the weight.
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    output = torch.empty(len(x), weight.rows, dtype=x.dtype, device=x.device) if addend is None else addend
    if len(x):
        for rows, arguments, constants in _sections(weight):
            part_bias = None if bias is None else bias[rows]
            _multiply(output[:, rows], x, arguments, constants, part_bias, adds=addend is not None)
    return output


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
    (tokens, columns), rows = x.shape, output.shape[1]
    cut = tiles_for(tokens, ordered=weight[-1] is not None)
    splits = splits_for(rows, columns, cut)
    target = output
    if splits > 1:
        target = torch.empty(splits, tokens, rows, dtype=torch.float32, device=x.device)
    each = triton.cdiv(triton.cdiv(columns, splits), cut.columns) * cut.columns
    coded_linear_kernel[triton.cdiv(tokens, cut.tokens), triton.cdiv(rows, cut.rows), splits](
        target,
        x,
        *weight,
        None if splits > 1 else bias,
        tokens,
        rows,
        columns,
        *_widths(weight),
        each,
        x.stride(0),
        output.stride(0),
        **constants,
        BLOCK_M=cut.tokens,
        BLOCK_N=cut.rows,
        BLOCK_K=cut.columns,
        SPLIT=splits > 1,
        ADDS=adds and splits == 1,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    if splits > 1:
        grid = tokens, triton.cdiv(rows, _SUM_COLUMNS)
        sum_kernel[grid](
            output, target, bias, tokens, rows, output.stride(0), PARTS=splits, BLOCK=_SUM_COLUMNS, ADDS=adds
        )


def decode(weight: CodedWeight, dtype: torch.dtype) -> Tensor:
    """Return the numbers [out, in] of a weight, of which `can_multiply` must be true, in `dtype`."""
    output = torch.empty(weight.rows, weight.columns, dtype=dtype, device=weight.parts[0].codes.device)
    block_n, block_k = 32, 128
    for rows, arguments, constants in _sections(weight):
        numbers = output[rows]
        decode_kernel[triton.cdiv(len(numbers), block_n), triton.cdiv(weight.columns, block_k)](
            numbers, *arguments, *numbers.shape, *_widths(arguments), **constants, BLOCK_N=block_n, BLOCK_K=block_k
        )
    return output


def _widths(weight: list[Tensor | None]) -> tuple[int, int]:
    """Return the words and the groups of a row."""
    codes, scale = cast("list[Tensor]", weight[:2])
    return codes.shape[1], scale.shape[1]


def _sections(weight: CodedWeight) -> Iterator[tuple[slice, list[Tensor | None], dict[str, Any]]]:
    """Yield rows that one launch computes, with the kernels' tensors and constants of them."""
    start = 0
    for part in weight.parts:
        first = 0
        for index, count in enumerate(part.sections or (len(part.codes),)):
            own = slice(first, first + count)
            tensors = (part.scale, part.zero, part.minimum, part.super_scale, part.super_minimum)
            order = None if part.column_groups is None else part.column_groups[index]
            arguments = [part.codes[own].view(torch.int32), *(None if it is None else it[own] for it in tensors), order]
            if count:
                yield slice(start + first, start + first + count), arguments, _constants(part)
            first += count
        start += first


def _constants(part: CodedPart) -> dict[str, Any]:
    """Return the compile-time constants of a part's codes."""
    signed = part.codes.dtype == torch.int8
    supers = 1 if part.super_scale is None else part.scale.shape[1] // part.super_scale.shape[1]
    return {
        "BITS": part.bits,
        "SIGNED": signed,
        "GROUP": 0 if _one_group(part) else part.group or part.columns,
        "SUPER": supers,
        "OFFSET": part.offset + (1 << part.bits) + _SIGN * signed,
    }
