"""Weights of 4 or 8 bits in the form that kernels multiply: codes with scales by groups.

The kernels are in quantized.c, and for GPUs in kernels/quantized/quantized_linear.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SCALES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
_GRAINS = {4: 32, 8: 16}
"""Groups of so many columns, or of a multiple, are what the kernels sum before they scale, by the bits of a code."""
_INPUTS = 32
"""Inputs that share a scale where they are multiplied in 8 bits."""
_SIGN = 128
_PIECE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedPart:
    """Some rows of a weight; each number is (code - zero - offset) * scale + minimum."""

    codes: Tensor
    """[rows, columns * bits / 8] uint8, or int8: of 4 bits the first one is in the lower half of a byte. Or e4m3, which
    only Triton kernels multiply."""
    scale: Tensor
    """[rows, groups] float32, bfloat16 or float16; or int8, to be multiplied with `super_scale`."""
    bits: int
    columns: int
    group: int | None
    """Columns that share a scale; None: all of a row."""
    minimum: Tensor | None = None
    """[rows, groups] in the type of `scale`."""
    zero: Tensor | None = None
    """[rows, groups] uint8."""
    offset: float = 0.0
    super_scale: Tensor | None = None
    """[rows, columns / 256] float16: what scales of 8 bits are multiplied with."""
    super_minimum: Tensor | None = None
    """Factors of the minima."""
    column_groups: Tensor | None = None
    """int32 [sections, columns]: the group of each column, where groups are not of consecutive columns; None: they are.
    Only kernels for GPUs know these, to dequantize them: if possible columns are sorted (quantization/act_order.py)."""
    sections: tuple[int, ...] = ()
    """The rows of each section of `column_groups`."""

    @property
    def known_to_kernels(self) -> bool:
        """True if the kernels multiply codes and groups of these sizes and types."""
        whole = self.group is None or self.group >= self.columns or self.group % _GRAINS[self.bits] == 0
        # Kernels take unsigned codes of 8 bits for signed ones by a larger offset, which a minimum takes the place of.
        shifted = self.bits == 8 and self.codes.dtype == torch.uint8 and self.minimum is not None
        wide = self.minimum is not None and self.minimum.dtype == torch.float32
        fits = whole and self.columns % 2 == 0 and self.scale.dtype in _SCALES
        return fits and not (shifted or wide or self.codes.is_floating_point()) and self.column_groups is None

    @property
    def can_be_interleaved(self) -> bool:
        """True if inputs that share a scale do not reach beyond a row (integers.c)."""
        return self.known_to_kernels and self.columns % _INPUTS == 0 and float(self.offset).is_integer()

    def of_rows(self, rows: slice) -> QuantizedPart:
        """Return some of the rows, in the same memory."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        cut: dict[str, Any] = {name: each[rows] for name, each in found.items() if isinstance(each, Tensor)}
        return replace(self, **cut)


class _Codes(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("codes", "scale", "minimum", "zero", "super_scale", "super_minimum")),
        *((name, _LONG) for name in ("rows", "inner", "groups", "group")),
        ("offset", _FLOAT),
        *((name, _INT) for name in ("bits", "flip", "scales", "interleaved")),
    )


class QuantizedStructure(ctypes.Structure):
    """The weight's description as an argument of C functions."""

    _fields_ = (("parts", ctypes.POINTER(_Codes)), ("count", _LONG))


class QuantizedWeight:
    """A weight of one or more parts, whose rows follow one another and whose memory may still be moved.

    Once `interleaved`, the memory is in the order that the kernels are quickest with, and is read by them alone.
    """

    __slots__ = ("_pointer", "_structure", "column_order", "interleaved", "known_to_kernels", "parts")

    def __init__(self, parts: Sequence[QuantizedPart], column_order: Tensor | None = None) -> None:
        """`column_order`: the input's column for each of the weight's, int32 [columns]; None: the same one. Kernels do
        not know it: the input is put into this order before (`Compute.quantized`)."""
        self.parts = tuple(parts)
        self.column_order = column_order
        self.interleaved = False
        self.known_to_kernels = all(part.known_to_kernels for part in self.parts)  # each product asks
        self._pointer, self._structure = (0, False), QuantizedStructure()

    @property
    def rows(self) -> int:
        """The number of rows of all parts."""
        return sum(len(part.codes) for part in self.parts)

    @property
    def columns(self) -> int:
        """Columns of each part, which are the same for all."""
        return self.parts[0].columns

    def of_rows(self, first: int, count: int) -> QuantizedWeight:
        """Return some rows of a weight of one part, in its memory, which must not move any more."""
        (part,) = self.parts
        return QuantizedWeight([part.of_rows(slice(first, first + count))])

    @property
    def can_be_interleaved(self) -> bool:
        """True if all parts can be interleaved."""
        return all(part.can_be_interleaved for part in self.parts)

    @property
    def structure(self) -> QuantizedStructure:
        """The C structure of the weight's present memory; the same object until the memory moves or is interleaved."""
        pointer = self.parts[0].codes.data_ptr(), self.interleaved
        if pointer != self._pointer:
            parts = (_Codes * len(self.parts))(*(_codes(part, interleaved=self.interleaved) for part in self.parts))
            self._pointer, self._structure = pointer, QuantizedStructure(parts, len(parts))
        return self._structure


def unpack(stored: Tensor, bits: int) -> Tensor:
    """Return codes uint8 [rows, columns] of bytes [rows, columns * bits / 8]."""
    return stored if bits == 8 else torch.stack((stored & 15, stored >> 4), dim=-1).flatten(1)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return bytes [rows, columns * bits / 8] of codes uint8 [rows, columns]."""
    return codes if bits == 8 else codes[:, ::2] | codes[:, 1::2] << 4


def in_pieces(rows: int, columns: int) -> Iterator[slice]:
    """Yield the rows of a weight in pieces that are reordered one after another: at least one row, or 4 Mi codes."""
    step = max(1, _PIECE // columns)
    yield from (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def _codes(part: QuantizedPart, *, interleaved: bool) -> _Codes:
    tensors = part.codes, part.scale, part.minimum, part.zero, part.super_scale, part.super_minimum
    pointers = (None if each is None else each.data_ptr() for each in tensors)
    sizes = len(part.codes), part.columns, part.scale.shape[1], part.group or part.columns
    # Codes of 8 bits are converted as signed ones: others become so, and their zero with them.
    flip = _SIGN if part.bits == 8 and part.codes.dtype == torch.uint8 else 0
    return _Codes(*pointers, *sizes, part.offset - flip, part.bits, flip, _SCALES[part.scale.dtype], interleaved)
