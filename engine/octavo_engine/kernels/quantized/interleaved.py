"""Weights of 4 bits in the order of the tensor cores' registers, on GPUs: the order, and dequantization from it.

Once loaded, codes are stored by tiles of 128 columns, [columns / 128, rows, 64 bytes]. A row's tile is 32 half words of
16 bits. Half word h has the codes of columns h, 32 + h, 64 + h and 96 + h, the lowest bits first, so that one
instruction makes two adjacent 16-bit numbers of two half words in a register (`differences`). They are stored as
[4 (c), 4 (j), 2 (i)] for h = 8 j + 2 c + i, since a thread has the columns 8 j + 2 c + i, for all j and i, of the first
operand of a product in registers: it reads them as 16 bytes.

Scales follow in the order in which tiles need them, in the memory that they had:

- with groups of 128 columns, or of a multiple: int32 [groups, rows], the scale as float16 in the upper half, the zero
  in the lower half, so that both are one load (the zeros' own memory is no longer read);
- with groups of 32 columns and a minimum: scales and minima each [columns / 128, rows, 4], bfloat16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight, in_pieces, unpack
from octavo_engine.kernels.quantized.quantized_numbers import one_group, plane

TILE = 128
"""The columns of a tile."""
_MOST_ZERO = 127
"""The largest zero that can be added to 2 ** 7 in bfloat16 by its bits."""
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)

_DECODE = """{{ .reg .b32 t, u, v;
shr.b32 t, $4, 4; shr.b32 u, $4, 8; shr.b32 v, $4, 12;
lop3.b32 $0, $4, 0x000f000f, {ones}, 0xea;
lop3.b32 $1, t, 0x000f000f, {ones}, 0xea;
lop3.b32 $2, u, 0x000f000f, {ones}, 0xea;
lop3.b32 $3, v, 0x000f000f, {ones}, 0xea;
"""
# GPUs before Hopper multiply and add bfloat16 numbers, but do not subtract them: minus one times what is subtracted.
_SUBTRACT = """mov.b32 t, {minus_one};
fma.rn.{type} $0, $5, t, $0; fma.rn.{type} $1, $6, t, $1;
fma.rn.{type} $2, $7, t, $2; fma.rn.{type} $3, $8, t, $3; }}"""
_SCALE = """mov.b32 t, {ones}; mov.b32 u, {minus_one};
fma.rn.{type} $0, t, u, $0; fma.rn.{type} $1, t, u, $1; fma.rn.{type} $2, t, u, $2; fma.rn.{type} $3, t, u, $3;
fma.rn.{type} $0, $0, $5, $9; fma.rn.{type} $1, $1, $6, $10;
fma.rn.{type} $2, $2, $7, $11; fma.rn.{type} $3, $3, $8, $12; }}"""
_BF16 = {"ones": "0x43004300", "minus_one": "0xbf80bf80", "type": "bf16x2"}
_FP16 = {"ones": "0x64006400", "minus_one": "0xbc00bc00", "type": "f16x2"}
_SUBTRACT_BF16 = tl.constexpr((_DECODE + _SUBTRACT).format(**_BF16))
_SUBTRACT_FP16 = tl.constexpr((_DECODE + _SUBTRACT).format(**_FP16))
_SCALE_BF16 = tl.constexpr((_DECODE + _SCALE).format(**_BF16))
_SCALE_FP16 = tl.constexpr((_DECODE + _SCALE).format(**_FP16))
_OF_ZEROS = tl.constexpr("=&r,=&r,=&r,=&r," + ",".join("r" * 5))
_OF_MINIMA = tl.constexpr("=&r,=&r,=&r,=&r," + ",".join("r" * 9))


@triton.jit
def ones_of(dtype: tl.constexpr) -> tl.constexpr:
    """Return the bits of 2 ** 7 in bfloat16, 2 ** 10 in float16, to which a code adds itself as its lowest bits."""
    return tl.constexpr(0x4300 if dtype == tl.bfloat16 else 0x6400)


@triton.jit
def code_at(half, PLACE: tl.constexpr):
    """Return the codes at PLACE of half words, float32."""
    return ((half.to(tl.int32) >> (4 * PLACE)) & 15).to(tl.float32)


@triton.jit
def differences(half, zero, dtype: tl.constexpr):
    """Return code - zero of the four columns of half words [N, 32], each in `dtype`; zeros [N, 1] include `ones_of`."""
    if _INTERPRETED:
        ONE: tl.constexpr = 128 if dtype == tl.bfloat16 else 1024
        plain = zero.to(tl.float32) - ONE
        a, b = (code_at(half, 0) - plain).to(dtype), (code_at(half, 1) - plain).to(dtype)
        c, d = (code_at(half, 2) - plain).to(dtype), (code_at(half, 3) - plain).to(dtype)
    elif dtype == tl.bfloat16:
        a, b, c, d = tl.inline_asm_elementwise(
            _SUBTRACT_BF16, _OF_ZEROS, [half, zero, zero, zero, zero],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2,
        )  # fmt: skip
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            _SUBTRACT_FP16, _OF_ZEROS, [half, zero, zero, zero, zero],
            (tl.float16, tl.float16, tl.float16, tl.float16), True, 2,
        )  # fmt: skip
    return in_column_order(a, b, c, d)


@triton.jit
def scaled(half, s0, s1, s2, s3, m0, m1, m2, m3, dtype: tl.constexpr):
    """Return code * scale + minimum of half words [N, 32], rounded to `dtype` once; scales and minima [N, 1]."""
    if _INTERPRETED:
        a = (code_at(half, 0) * s0.to(tl.float32) + m0.to(tl.float32)).to(dtype)
        b = (code_at(half, 1) * s1.to(tl.float32) + m1.to(tl.float32)).to(dtype)
        c = (code_at(half, 2) * s2.to(tl.float32) + m2.to(tl.float32)).to(dtype)
        d = (code_at(half, 3) * s3.to(tl.float32) + m3.to(tl.float32)).to(dtype)
    elif dtype == tl.bfloat16:
        a, b, c, d = tl.inline_asm_elementwise(
            _SCALE_BF16, _OF_MINIMA, [half, s0, s1, s2, s3, m0, m1, m2, m3],
            (tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), True, 2,
        )  # fmt: skip
    else:
        a, b, c, d = tl.inline_asm_elementwise(
            _SCALE_FP16, _OF_MINIMA, [half, s0, s1, s2, s3, m0, m1, m2, m3],
            (tl.float16, tl.float16, tl.float16, tl.float16), True, 2,
        )  # fmt: skip
    return in_column_order(a, b, c, d)


@triton.jit
def in_column_order(a, b, c, d):
    """Return [N, 128] of the numbers of each place in half words, [N, 32] each, which are 32 columns apart."""
    joined = tl.join(tl.join(a, b), tl.join(c, d))  # [N, 32, 2 (a or b), 2 (a and b, or c and d)]
    return tl.reshape(tl.permute(joined, (0, 3, 2, 1)), [a.shape[0], a.shape[1] * 4])


@triton.jit
def half_words(codes, tile, first_row, N, BLOCK_N: tl.constexpr):
    """Return the half words of BLOCK_N rows of a tile, [BLOCK_N, 32] in the order of their columns."""
    places = tl.arange(0, BLOCK_N * 32)
    stored = tl.load(codes + (tile * N + first_row) * 32 + places, mask=places < (N - first_row) * 32, other=0)
    return tl.reshape(tl.permute(tl.reshape(stored, [BLOCK_N, 4, 4, 2]), (0, 2, 1, 3)), [BLOCK_N, 32])


@triton.jit
def scale_and_zero(scale, rows, group, N):
    """Return the words of a group's scale and zero, int32 [BLOCK_N, 1]."""
    return tl.load(scale + group * N + rows, mask=rows < N, other=0)


@triton.jit
def scale_in(word):
    """Return the scale in a word of scale and zero, float32."""
    return (word >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def of_four_groups(values, rows, tile, N):
    """Return what the four groups of a tile have of values [tiles, N, 4], [BLOCK_N, 1] each."""
    places = (tile * N + rows) * 4 + tl.arange(0, 4)[None, :]
    found = tl.load(values + places, mask=rows < N, other=0)
    even, odd = tl.split(tl.reshape(found, [rows.shape[0], 2, 2]))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first[:, None], second[:, None], third[:, None], fourth[:, None]


@triton.jit
def dequantize_interleaved_kernel(
    output,  # [N, K], contiguous
    codes,  # int16 [K / 128, N, 32]
    scale,  # int32 [groups, N]; with a minimum as that is
    minimum,  # [K / 128, N, 4]; None: none
    N,
    K,
    GROUP: tl.constexpr,  # columns that share a scale, a multiple of 128; with a minimum 32
    BLOCK_N: tl.constexpr,
):
    """One program writes [BLOCK_N, 128] numbers of the weight."""
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    half = half_words(codes, tile, tl.program_id(0) * BLOCK_N, N, BLOCK_N).to(tl.int32)
    dtype: tl.constexpr = output.dtype.element_ty
    if minimum is None:
        word = scale_and_zero(scale, rows, tile * 128 // GROUP, N)
        s0 = scale_in(word)
        m0 = -(word & 0xFF).to(tl.float32) * s0
        s1, s2, s3, m1, m2, m3 = s0, s0, s0, m0, m0, m0
    else:
        s0, s1, s2, s3 = of_four_groups(scale, rows, tile, N)
        m0, m1, m2, m3 = of_four_groups(minimum, rows, tile, N)
        s0, s1, s2, s3 = s0.to(tl.float32), s1.to(tl.float32), s2.to(tl.float32), s3.to(tl.float32)
    # `plane` makes numbers of 2 ** 4 + code.
    numbers = in_column_order(
        plane(half, s0, m0.to(tl.float32) - 16 * s0, 0, 4, dtype),
        plane(half, s1, m1.to(tl.float32) - 16 * s1, 1, 4, dtype),
        plane(half, s2, m2.to(tl.float32) - 16 * s2, 2, 4, dtype),
        plane(half, s3, m3.to(tl.float32) - 16 * s3, 3, 4, dtype),
    )
    places = tile * 128 + tl.arange(0, 128)[None, :]
    tl.store(output + rows.to(tl.int64) * K + places, numbers, mask=rows < N)


def dequantize_interleaved(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """Return the numbers [out, in] of an interleaved weight in `dtype`, computed in float32."""
    output = torch.empty(weight.rows, weight.columns, dtype=dtype, device=weight.parts[0].codes.device)
    start, block_n = 0, 32
    for part in weight.parts:
        rows = len(part.codes)
        dequantize_interleaved_kernel[triton.cdiv(rows, block_n), part.columns // TILE](
            output[start : start + rows], *arguments(part), rows, part.columns, GROUP=group_of(part), BLOCK_N=block_n
        )
        start += rows
    return output


def arguments(part: QuantizedPart) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes, scale and minimum of an interleaved part as kernels read them."""
    scale = part.scale.view(torch.int32) if part.minimum is None else part.scale
    return part.codes.view(torch.int16), scale, part.minimum


def group_of(part: QuantizedPart) -> int:
    """Return the number of columns that share a scale."""
    return part.columns if one_group(part) else part.group or part.columns


def can_be_interleaved(weight: QuantizedWeight, dtype: torch.dtype) -> bool:
    """Return True if the kernels read such codes in this order, for activations in `dtype`; wait for the device.

    Rows must be complete tiles. Groups must be of complete tiles with scales that are exact in float16, as those of
    GPTQ and AWQ are, or of 32 columns with scales and minima that are exact in `dtype`.
    """
    return all(_can_be_interleaved(part, dtype) for part in weight.parts)


def _can_be_interleaved(part: QuantizedPart, dtype: torch.dtype) -> bool:
    halves = dtype in {torch.float16, torch.bfloat16}
    plain = part.codes.dtype == torch.uint8 and part.super_scale is None and part.column_groups is None
    if not (halves and plain and part.bits == 4 and part.columns % TILE == 0):
        return False
    if part.minimum is not None:
        known = part.group == 32 and part.zero is None and part.offset == 0 and part.scale.dtype == torch.bfloat16
        return known and _exact(part.scale, dtype) and _exact(part.minimum, dtype)
    known = group_of(part) % TILE == 0 and part.scale.dtype == torch.float32 and float(part.offset).is_integer()
    return known and _exact(part.scale, torch.float16) and bool((_zeros(part) <= _MOST_ZERO).all())


def _exact(values: Tensor, dtype: torch.dtype) -> bool:
    return bool((values.to(dtype).to(values.dtype) == values).all())


def _zeros(part: QuantizedPart) -> Tensor:
    """Return what is subtracted from codes, int32 [rows, groups] or of one number."""
    offset = torch.tensor([int(part.offset)], dtype=torch.int32, device=part.scale.device)
    return offset if part.zero is None else part.zero.to(torch.int32) + offset


@torch.no_grad()
def interleave(weight: QuantizedWeight) -> None:
    """Put codes and scales into this order, in their memory, of a weight that `can_be_interleaved` and is not yet."""
    for part in weight.parts:
        part.codes.copy_(_in_tiles(part.codes).view(part.codes.shape))
        if part.minimum is None:
            words = part.scale.half().view(torch.int16).to(torch.int32) << 16 | _zeros(part)
            part.scale.view(torch.int32).copy_(words.t().reshape(part.scale.shape))
        else:
            for values in (part.scale, part.minimum):
                values.copy_(values.view(len(values), -1, 4).transpose(0, 1).reshape(values.shape))
    weight.interleaved = True


def _in_tiles(codes: Tensor) -> Tensor:
    """Return codes [rows, columns / 2] as [columns / 128, rows, 64]."""
    rows, tiles = len(codes), codes.shape[1] * 2 // TILE
    ordered = codes.new_empty(tiles, rows, TILE // 2)
    for own in in_pieces(rows, tiles * TILE):
        a, b, c, d = unpack(codes[own], 4).view(-1, tiles, 4, 32).unbind(2)
        halves = torch.stack((a | b << 4, c | d << 4), dim=-1)  # [rows, tiles, 32, 2], the lower byte first
        ordered[:, own] = halves.view(-1, tiles, 4, 4, 4).permute(1, 0, 3, 2, 4).flatten(2)  # [.., j, c, i and byte]
    return ordered
