"""The memory layout of weights of 4 or 8 bits, whatever format they were published in, and their dequantization.

A number is (code - zero) times a scale that some columns of a row share; or a table's number for the code times the
scale; or code times scale plus a minimum. A byte has two codes of 4 bits, the first one in the lower half. Products
dequantize the weight, which is the reference for kernels that multiply codes (`Weights.quantized`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight, unpack
from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.model.quantization.linear_method import LinearShape, Projection, Weights
from octavo_engine.model.quantization.pieces import PIECE_BYTES, dequantize_rows, piece_size
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.quantization.weight_only import WeightOnly

_ACT_ORDER_BYTES = 16
"""The bytes for each number of a piece with act-order, where scales and zeros are gathered for each."""
WORD_BITS = 32
"""The bits of the words in which published formats store codes; ranks have complete words."""

StoredTensors = Callable[["Grouped", Weights, Projection], Iterator[CheckpointTensor]]
"""Yields the tensors of a projection in a checkpoint of one format."""


@dataclass(frozen=True, slots=True)
class Grouped(WeightOnly):
    """The linear method of weights in this layout: codes, scales, zeros, and how a checkpoint's tensors fill them."""

    name: str
    bits: int
    """The bits of a code: 4 or 8."""
    group_size: int | None
    """The number of columns that share a scale; None: all of a row."""
    stored: StoredTensors
    has_zeros: bool = False
    """Whether each scale has a zero of its own; otherwise the zero is the middle of the codes."""
    has_minimum: bool = False
    """Whether each scale has a minimum, to which the numbers are added; both have 16 bits unless they are `wide`."""
    wide: bool = False
    """Whether scales and minima have 32 bits, for layouts that the kernels for CPUs do not read."""
    act_order: bool = False
    """Whether groups are not of consecutive columns (GPTQ's act-order), so that each column's group is stored."""
    ranks_cut_anywhere: bool = False
    """Whether groups begin at each rank's first column: for weights that are quantized while they are loaded."""
    table: tuple[float, ...] | None = None
    """The value of each code; None: the code itself less the zero."""
    fewer_bits: int | None = None
    """The bits of a code in a checkpoint's words if they are fewer than in memory: 2 or 3."""

    @property
    def stored_bits(self) -> int:
        """The bits of a code in a checkpoint's words."""
        return self.fewer_bits or self.bits

    @property
    def row_alignment(self) -> int:
        """Ranks have complete words of zeros."""
        return codes_of_words(self.stored_bits) if self.has_zeros else 1

    @property
    def column_alignment(self) -> int:
        """Ranks have complete groups and words; with act-order all groups of their rows."""
        if self.ranks_cut_anywhere:
            return 8 // self.bits
        codes = codes_of_words(self.stored_bits)
        return codes if self.act_order or self.group_size is None else max(codes, self.group_size)

    def groups(self, columns: int) -> int:
        """Return the number of scales in a row of so many columns."""
        return 1 if self.group_size is None else -(-columns // self.group_size)

    def create(
        self,
        shape: LinearShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8_products: bool,  # noqa: ARG002
    ) -> Weights:
        """Create codes uint8 [out, bytes], scales float32 and zeros uint8 [out, groups], or scales and minima in
        bfloat16."""
        rows, columns = shape.rows, shape.columns.size
        groups = self.groups(shape.columns.total if self.act_order else columns)
        zero = parameter(rows, groups, dtype=torch.uint8, device=device) if self.has_zeros else None
        indices: nn.Parameter | None = None
        if self.act_order:
            indices = parameter(len(shape.parts), columns, dtype=torch.int32, device=device)
        scales = torch.bfloat16 if self.has_minimum and not self.wide else torch.float32
        weights = Weights(
            parameter(rows, columns * self.bits // 8, dtype=torch.uint8, device=device),
            parameter(rows, groups, dtype=scales, device=device),
            zero=zero,
            minimum=parameter(rows, groups, dtype=scales, device=device) if self.has_minimum else None,
            column_groups=indices,
            parts=shape.parts,
            dtype=dtype,
        )
        weights.quantized = self._quantized(weights, columns)
        return weights

    def _quantized(self, weights: Weights, columns: int) -> QuantizedWeight | None:
        """Return the weight for kernels that multiply codes; None where it has a table, which none of them reads."""
        if self.table is not None:
            return None
        part = QuantizedPart(
            codes=weights.weight,
            scale=cast("Tensor", weights.scale),
            bits=self.bits,
            columns=columns,
            group=self.group_size,
            minimum=weights.minimum,
            zero=weights.zero,
            offset=0.0 if self.has_minimum or self.has_zeros else 2.0 ** (self.bits - 1),
            column_groups=weights.column_groups,
            sections=weights.parts if self.act_order else (),
        )
        return QuantizedWeight([part])

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield the tensors that the format's own function gives."""
        yield from self.stored(self, weights, projection)

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of the weight in the dtype of the products, and of a piece of it in float32."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 8 // self.bits
        piece = piece_size(max(weights.parts), columns)
        return rows * columns * weights.dtype.itemsize + piece * (_ACT_ORDER_BYTES if self.act_order else PIECE_BYTES)

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the numbers of a weight [out, in], computed in float32 and rounded to `dtype` once."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 8 // self.bits
        result = torch.empty(rows, columns, dtype=dtype, device=weights.weight.device)
        start = 0
        for part, size in enumerate(weights.parts):
            dequantize_rows(partial(self._numbers, weights, part), slice(start, start + size), result)
            start += size
        return result

    def _numbers(self, weights: Weights, part: int, rows: slice) -> Tensor:
        """Return the numbers of some rows of one projection, float32."""
        codes, scale = unpack(weights.weight[rows], self.bits), cast("Tensor", weights.scale)[rows]
        zero = self._zeros(weights, rows)
        if weights.column_groups is not None:
            group = weights.column_groups[part]
            return codes.float().sub_(zero if zero.dim() == 0 else zero[:, group]).mul_(scale[:, group])
        if weights.minimum is not None:
            return _above_minimum(codes.float(), scale, weights.minimum[rows], self.group_size or codes.shape[1])
        numbers = codes.float() if self.table is None else looked_up(self.table, codes)
        _scale_groups(numbers, scale, zero, self.group_size or numbers.shape[1])
        return numbers

    def _zeros(self, weights: Weights, rows: slice) -> Tensor:
        """Return the zero of each scale of these rows, or one for all."""
        if weights.zero is not None:
            return weights.zero[rows].float()
        return torch.tensor(0.0 if self.table else 2.0 ** (self.bits - 1), device="cpu")


def _above_minimum(numbers: Tensor, scale: Tensor, minimum: Tensor, size: int) -> Tensor:
    """Return numbers * scale + minimum, in place, by groups of `size` columns, of which the last one may be smaller."""
    full = numbers.shape[1] // size
    complete = numbers[:, : full * size].view(len(numbers), full, size)
    complete.mul_(scale[:, :full, None]).add_(minimum[:, :full, None])
    numbers[:, full * size :].mul_(scale[:, full:]).add_(minimum[:, full:])
    return numbers


def _scale_groups(numbers: Tensor, scale: Tensor, zero: Tensor, size: int) -> None:
    """Compute (numbers - zero) * scale in place, by groups of `size` columns, of which the last one may be smaller."""
    full = numbers.shape[1] // size
    complete = numbers[:, : full * size].view(len(numbers), full, size)
    complete.sub_(zero if zero.dim() == 0 else zero[:, :full, None]).mul_(scale[:, :full, None])
    if full < scale.shape[1]:
        numbers[:, full * size :].sub_(zero if zero.dim() == 0 else zero[:, full:]).mul_(scale[:, full:])


@cache
def _table(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the table on the device; it is cached, since nothing may be copied while a CUDA graph is captured."""
    return torch.tensor(numbers, device=device)


def looked_up(numbers: tuple[float, ...], codes: Tensor) -> Tensor:
    """Return the number of each code uint8 [rows, columns], float32."""
    # Indexing by `[]` makes indices of 64 bits, which take twice the memory of the plan.
    return _table(numbers, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)


def codes_of_words(bits: int) -> int:
    """Return the number of codes with which a word ends; those of 3 bits, of which a word may have a part, take three
    words."""
    return WORD_BITS // math.gcd(WORD_BITS, bits)
