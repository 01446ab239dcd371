"""Keeps GGUF's blocks quantized in memory: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ4_NL and IQ4_XS.

Codes, scales and minima are tensors of their own, so that all formats are multiplied in the same way; the numbers are
exactly the file's. Codes other than of 4 bits take a byte each, and so do those of IQ4_NL and IQ4_XS, which mean the
whole numbers of a table. In the K formats and IQ4_XS 256 columns share one or two numbers in float16, with which the
scales and minima of 4 to 8 bits of each 32 or 16 columns are multiplied. Layouts are those of ggml's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight, pack, unpack
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, write
from octavo_engine.model.quantization.linear_method import LinearShape, Projection, Weights
from octavo_engine.model.quantization.loading import in_parts
from octavo_engine.model.quantization.pieces import PIECE_BYTES, dequantize_rows, piece_size
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.quantization.weight_only import WeightOnly

_K = 256
"""The columns of a block of the K formats."""
_PIECE = 1 << 20
"""The numbers that are split at once; each takes up to 8 bytes meanwhile."""
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The numbers of the codes of IQ4_NL and IQ4_XS (`kvalues_iq4nl`)."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The parts of some blocks: `codes` [..., columns of a block] uint8 or int8, all others [..., groups or 1]."""

    codes: Tensor
    scale: Tensor
    minimum: Tensor | None = None
    super_scale: Tensor | None = None
    super_minimum: Tensor | None = None


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The layout of one of ggml's block types."""

    columns: int
    num_bytes: int
    bits: int
    """The bits of a code in memory: 4 or 8."""
    group: int
    split: Callable[[Tensor], Blocks]
    """Splits the bytes of blocks [..., num_bytes] into their parts."""
    offset: float = 0.0
    has_minimum: bool = False

    @property
    def has_supers(self) -> bool:
        """True if scales are whole numbers, which are multiplied with a further scale of each block."""
        return self.columns == _K


def _by(numbers: Tensor, size: int) -> Tensor:
    """Return the last dimension in parts of `size`, which share the memory if they can."""
    return numbers.reshape(*numbers.shape[:-1], -1, size)


def _halves(raw: Tensor) -> Tensor:
    """Return each two bytes as float16."""
    return raw.contiguous().view(torch.float16)


def _fields(raw: Tensor, bits: int) -> Tensor:
    """Return the numbers of so many bits in bytes [..., n], the lowest ones first: uint8 [..., 8 / bits, n]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).unsqueeze(-1)
    return (raw.unsqueeze(-2) >> shifts).bitwise_and_(2**bits - 1)


def _planes(raw: Tensor, bits: int) -> Tensor:
    """Return the numbers of so many bits, the lowest ones of all bytes [..., n] first: [..., n * 8 / bits]."""
    return _fields(raw, bits).flatten(-2)


def _planes_of(size: int, raw: Tensor, bits: int) -> Tensor:
    """Return the planes of each `size` bytes, one after the other: [..., n * 8 / bits]."""
    return _planes(_by(raw, size), bits).flatten(-2)


def _in_order(raw: Tensor, bits: int) -> Tensor:
    """Return the numbers of so many bits, all of a byte [..., n] before those of the next: [..., n * 8 / bits]."""
    return _fields(raw, bits).mT.flatten(-2)


def _q4_0(raw: Tensor) -> Blocks:
    return Blocks(_planes(raw[..., 2:], 4), _halves(raw[..., :2]))


def _q4_1(raw: Tensor) -> Blocks:
    return Blocks(_planes(raw[..., 4:], 4), _halves(raw[..., :2]), _halves(raw[..., 2:4]))


def _q5_0(raw: Tensor) -> Blocks:
    codes = (_planes(raw[..., 6:], 4) | _in_order(raw[..., 2:6], 1) << 4).to(torch.int8) - 16
    return Blocks(codes, _halves(raw[..., :2]))


def _q5_1(raw: Tensor) -> Blocks:
    codes = (_planes(raw[..., 8:], 4) | _in_order(raw[..., 4:8], 1) << 4).to(torch.int8)
    return Blocks(codes, _halves(raw[..., :2]), _halves(raw[..., 2:4]))


def _q8_0(raw: Tensor) -> Blocks:
    return Blocks(raw[..., 2:].contiguous().view(torch.int8), _halves(raw[..., :2]))


def _six_bits(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight scales and eight minima, int8, in 12 bytes."""
    first, second, third = raw[..., :4], raw[..., 4:8], raw[..., 8:]
    scale = torch.cat((first & 63, (third & 15) | (first >> 6) << 4), dim=-1)
    minimum = torch.cat((second & 63, third >> 4 | (second >> 6) << 4), dim=-1)
    return scale.to(torch.int8), minimum.to(torch.int8)


def _q2_k(raw: Tensor) -> Blocks:
    scale, minimum = (raw[..., :16] & 15).to(torch.int8), (raw[..., :16] >> 4).to(torch.int8)
    codes = _planes_of(32, raw[..., 16:80], 2).to(torch.int8)
    return Blocks(codes, scale, -minimum, _halves(raw[..., 80:82]), _halves(raw[..., 82:]))


def _q3_k(raw: Tensor) -> Blocks:
    scale = (_planes(raw[..., 96:104], 4) | _planes(raw[..., 104:108], 2) << 4).to(torch.int8) - 32
    codes = (_planes_of(32, raw[..., 32:96], 2) | _planes(raw[..., :32], 1) << 2).to(torch.int8) - 4
    return Blocks(codes, scale, None, _halves(raw[..., 108:]))


def _q4_k(raw: Tensor) -> Blocks:
    scale, minimum = _six_bits(raw[..., 4:16])
    return Blocks(_planes_of(32, raw[..., 16:], 4), scale, -minimum, _halves(raw[..., :2]), _halves(raw[..., 2:4]))


def _q5_k(raw: Tensor) -> Blocks:
    scale, minimum = _six_bits(raw[..., 4:16])
    codes = (_planes_of(32, raw[..., 48:], 4) | _planes(raw[..., 16:48], 1) << 4).to(torch.int8)
    return Blocks(codes, scale, -minimum, _halves(raw[..., :2]), _halves(raw[..., 2:4]))


def _q6_k(raw: Tensor) -> Blocks:
    low = _planes_of(64, raw[..., :128], 4)
    codes = (low | _planes_of(32, raw[..., 128:192], 2) << 4).to(torch.int8) - 32
    return Blocks(codes, raw[..., 192:208].contiguous().view(torch.int8), None, _halves(raw[..., 208:]))


def _of_table(codes: Tensor) -> Tensor:
    return torch.tensor(_IQ4, dtype=torch.int8)[codes.int()]


def _iq4_nl(raw: Tensor) -> Blocks:
    return Blocks(_of_table(_planes(raw[..., 2:], 4)), _halves(raw[..., :2]))


def _iq4_xs(raw: Tensor) -> Blocks:
    scale = _in_order(raw[..., 4:8], 4) | _in_order(raw[..., 2:4], 2) << 4
    codes = _of_table(_planes_of(16, raw[..., 8:], 4))
    return Blocks(codes, scale.to(torch.int8) - 32, None, _halves(raw[..., :2]))


FORMATS = {
    "Q4_0": BlockFormat(32, 18, 4, 32, _q4_0, offset=8.0),
    "Q4_1": BlockFormat(32, 20, 4, 32, _q4_1, has_minimum=True),
    "Q5_0": BlockFormat(32, 22, 8, 32, _q5_0),
    "Q5_1": BlockFormat(32, 24, 8, 32, _q5_1, has_minimum=True),
    "Q8_0": BlockFormat(32, 34, 8, 32, _q8_0),
    "Q2_K": BlockFormat(_K, 84, 8, 16, _q2_k, has_minimum=True),
    "Q3_K": BlockFormat(_K, 110, 8, 16, _q3_k),
    "Q4_K": BlockFormat(_K, 144, 4, 32, _q4_k, has_minimum=True),
    "Q5_K": BlockFormat(_K, 176, 8, 32, _q5_k, has_minimum=True),
    "Q6_K": BlockFormat(_K, 210, 8, 16, _q6_k),
    "IQ4_NL": BlockFormat(32, 18, 8, 32, _iq4_nl),
    "IQ4_XS": BlockFormat(_K, 136, 8, 32, _iq4_xs),
}
"""The formats by ggml's names."""


@dataclass(frozen=True, slots=True)
class GGUFBlocks(WeightOnly):
    """The linear method of layers whose projections all have the same block type."""

    type_name: str
    row_alignment: int = 1

    @property
    def name(self) -> str:
        """The name for the plan's table and log lines."""
        return f"gguf {self.type_name}"

    @property
    def format(self) -> BlockFormat:
        """The layout of the blocks."""
        return FORMATS[self.type_name]

    @property
    def column_alignment(self) -> int:
        """Ranks have complete blocks."""
        return self.format.columns

    def create(
        self,
        shape: LinearShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8_products: bool,  # noqa: ARG002
    ) -> Weights:
        """Create codes [out, bytes], and scales and minima [out, groups] in float16, or in int8 with a float16 for each
        block."""
        rows, columns, form = shape.rows, shape.columns.size, self.format
        groups, kind = -(-columns // form.group), torch.int8 if form.has_supers else torch.float16
        codes = torch.uint8 if form.bits == 4 else torch.int8

        def numbers(count: int, kind: torch.dtype, *, there: bool) -> nn.Parameter | None:
            return parameter(rows, count, dtype=kind, device=device) if there else None

        blocks = -(-columns // form.columns)
        weights = Weights(
            parameter(rows, columns * form.bits // 8, dtype=codes, device=device),
            numbers(groups, kind, there=True),
            minimum=numbers(groups, kind, there=form.has_minimum),
            super_scale=numbers(blocks, torch.float16, there=form.has_supers),
            super_minimum=numbers(blocks, torch.float16, there=form.has_supers and form.has_minimum),
            parts=shape.parts,
            dtype=dtype,
        )
        part = QuantizedPart(
            codes=weights.weight,
            scale=cast("Tensor", weights.scale),
            bits=form.bits,
            columns=columns,
            group=form.group,
            minimum=weights.minimum,
            super_scale=weights.super_scale,
            super_minimum=weights.super_minimum,
            offset=form.offset,
        )
        weights.quantized = QuantizedWeight([part])
        return weights

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield the weight, which has to be in blocks of this type."""
        rows, stored, columns = projection.rows, projection.stored_rows, projection.columns
        others = (weights.scale, weights.minimum, weights.super_scale, weights.super_minimum)
        targets = tuple(None if each is None else each[rows] for each in others)
        fill = partial(_split_blocks, self.format, targets)
        piece = Piece(weights.weight[rows], (stored.slice, columns.slice), fill, projection.order)
        shape = stored.total, columns.total
        name = f"{projection.name}.weight"
        yield CheckpointTensor(name=name, shape=shape, pieces=(piece,), types=(self.type_name,))

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the numbers [out, in], computed in float32 and rounded to `dtype` once."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 8 // self.format.bits
        result = torch.empty(rows, columns, dtype=dtype, device=weights.weight.device)
        dequantize_rows(partial(self._numbers, weights), slice(0, rows), result)
        return result

    def _numbers(self, weights: Weights, rows: slice) -> Tensor:
        """Return the numbers of some rows, float32 [rows, columns]."""
        numbers = unpack(weights.weight[rows], self.format.bits).float().sub_(self.format.offset)
        grouped = _by(numbers, self.format.group)
        grouped.mul_(_wide(weights.scale, weights.super_scale, rows))
        if self.format.has_minimum:
            grouped.add_(_wide(weights.minimum, weights.super_minimum, rows))
        return numbers

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of the weight in the dtype of the products, and of a piece of it in float32."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 8 // self.format.bits
        return rows * columns * weights.dtype.itemsize + piece_size(rows, columns) * PIECE_BYTES


def _wide(numbers: Tensor | None, supers: Tensor | None, rows: slice) -> Tensor:
    """Return the scales or minima of some rows, float32 [rows, groups, 1]."""
    found = cast("Tensor", numbers)[rows].float()
    if supers is not None:
        _by(found, found.shape[1] // supers.shape[1]).mul_(supers[rows].float().unsqueeze(-1))
    return found.unsqueeze(-1)


def _split_blocks(
    form: BlockFormat, targets: tuple[Tensor | None, ...], weight: Tensor, rows: Rows, values: Tensor
) -> None:
    """Split blocks `values` [n, bytes] into these rows of `weight` and `targets`: scales, minima, and their scales."""
    for place, part in in_parts(rows, values, _PIECE):
        blocks = form.split(_by(part, form.num_bytes))
        write(weight, place, pack(blocks.codes.flatten(1), form.bits))
        others = (blocks.scale, blocks.minimum, blocks.super_scale, blocks.super_minimum)
        for target, found in zip(targets, others, strict=True):
            if target is None or found is None:
                continue
            if found.is_floating_point() and not bool(found.isfinite().all()):
                raise ValueError("has scales that are not finite")
            write(target, place, found.flatten(1))
