"""Weights of 4-bit floating point (e2m1): NVFP4, and MXFP4 (OCP Microscaling Formats 1.0) of any linear layer.

Each byte has two numbers, the first one in the lower half. In NVFP4 16 columns share a scale in e4m3, and a weight has
a scale in float32, which compressed-tensors divides by and modelopt multiplies with. In MXFP4 32 columns share a power
of two (e8m0). They stay in memory as stored; products dequantize them, and activations are not quantized.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.quantized import unpack
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, ignored, plain, write
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.e4m3 import FP8
from octavo_engine.model.quantization.grouped import looked_up
from octavo_engine.model.quantization.linear_method import LinearShape, Projection, Weights
from octavo_engine.model.quantization.loading import check_scales, write_scales
from octavo_engine.model.quantization.mxfp4 import E2M1, E8M0, check_powers
from octavo_engine.model.quantization.pieces import PIECE_BYTES, dequantize_rows, piece_size
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.quantization.weight_only import WeightOnly

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TensorEndings:
    """The endings of the names of a projection's tensors in a checkpoint."""

    codes: str
    scales: str
    global_scale: str | None
    """The tensor of the one scale of all numbers of a weight; None: there is none."""
    divides: bool
    """Whether numbers are divided by the weight's scale, not multiplied."""
    activations: str
    """The tensor of activation scales, which is not read."""


@dataclass(frozen=True, slots=True)
class FP4(WeightOnly):
    """e2m1 codes uint8 [out, in / 2], scales e4m3 or e8m0 [out, groups], and perhaps a float32 scale for each row."""

    name: str
    group_size: int
    stored: TensorEndings
    row_alignment: int = 1

    @property
    def column_alignment(self) -> int:
        """Ranks have complete groups."""
        return self.group_size

    @property
    def _in_powers(self) -> bool:
        """True if scales are powers of two."""
        return self.stored.global_scale is None

    def create(
        self,
        shape: LinearShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8_products: bool,  # noqa: ARG002
    ) -> Weights:
        """Create codes and scales; a weight's one scale is repeated for each row, since several weights are fused."""
        rows, columns = shape.rows, shape.columns.size
        kind = torch.uint8 if self._in_powers else FP8
        return Weights(
            parameter(rows, columns // 2, dtype=torch.uint8, device=device),
            parameter(rows, -(-columns // self.group_size), dtype=kind, device=device),
            row_scale=None if self._in_powers else parameter(rows, 1, dtype=torch.float32, device=device),
            dtype=dtype,
        )

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield codes and scales, which are copied, and the weight's one scale."""
        if projection.columns.total % self.group_size:
            raise ModelLoadError(
                f"{projection.name}.{self.stored.codes}: {projection.columns.total} columns are not complete groups of "
                f"{self.group_size}, which {self.name} consists of"
            )
        rows, stored, columns, name = projection.rows, projection.stored_rows, projection.columns, projection.name
        codes = plain(
            f"{name}.{self.stored.codes}", weights.weight[rows], stored, columns.by(2), order=projection.order
        )
        yield replace(codes, types=("U8",))
        target, groups = cast("Tensor", weights.scale)[rows], columns.by(self.group_size)
        scales = plain(f"{name}.{self.stored.scales}", target, stored, groups, order=projection.order)
        write_them = partial(write_scales, or_zero=True)
        fill, types = (_write_powers, ("U8", "F8_E8M0")) if self._in_powers else (write_them, ("F8_E4M3",))
        pieces = tuple(replace(piece, fill=fill) for piece in scales.pieces)
        yield replace(scales, types=types, pieces=pieces)
        if weights.row_scale is not None:
            piece = Piece(weights.row_scale[rows], fill=_repeat)
            yield CheckpointTensor(name=f"{name}.{self.stored.global_scale}", shape=(), pieces=(piece,), squeezed=True)
        yield ignored(f"{name}.{self.stored.activations}")

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the numbers of a weight [out, in], computed in float32 and rounded to `dtype` once."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 2
        result = torch.empty(rows, columns, dtype=dtype, device=weights.weight.device)
        dequantize_rows(partial(self._numbers, weights), slice(0, rows), result)
        return result

    def _numbers(self, weights: Weights, rows: slice) -> Tensor:
        """Return the dequantized numbers of some rows, float32 [rows, columns]."""
        numbers = looked_up(E2M1, unpack(weights.weight[rows], 4))
        numbers.view(len(numbers), -1, self.group_size).mul_(self._scales(weights, rows).unsqueeze(-1))
        return numbers

    def _scales(self, weights: Weights, rows: slice) -> Tensor:
        """Return the scales of some rows' groups, float32 [rows, groups]."""
        stored = cast("Tensor", weights.scale)[rows]
        if weights.row_scale is None:
            return looked_up(E8M0, stored)
        wide, scale = stored.float(), weights.row_scale[rows]
        return wide.div_(scale) if self.stored.divides else wide.mul_(scale)

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of the weight in the dtype of the products, and of a piece of it in float32."""
        rows, columns = len(weights.weight), weights.weight.shape[1] * 2
        piece = piece_size(rows, columns)
        scales = 2 * _FLOAT32_BYTES * piece // self.group_size
        return rows * columns * weights.dtype.itemsize + piece * PIECE_BYTES + scales


def _write_powers(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Copy scales in e8m0; ValueError if some are NaN."""
    stored = values.view(torch.uint8)
    check_powers(stored)
    write(target, rows, stored)


def _repeat(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    """Fill each row's scale with the weight's one; ValueError if it is subnormal: dividing by it gives infinity."""
    check_scales(values, torch.finfo(torch.float32).tiny)
    target.fill_(values.item())


MODELOPT_NVFP4 = FP4("nvfp4", 16, TensorEndings("weight", "weight_scale", "weight_scale_2", False, "input_scale"))
"""The format of NVIDIA's modelopt."""
_PACKED = TensorEndings("weight_packed", "weight_scale", "weight_global_scale", True, "input_global_scale")
_NVFP4 = FP4("nvfp4", 16, _PACKED)
_MXFP4 = FP4("mxfp4", 32, replace(_PACKED, global_scale=None))


def _group(method: FP4, group: Fields, weights: Fields) -> FP4:
    """Read llm-compressor's format; activations are not quantized, whatever the group says of them."""
    bits, kind = weights.integer("num_bits", 0, 64), weights.text("type", default="?")
    size = weights.integer("group_size", -1, 1 << 20, default=method.group_size)
    if (bits, kind, size) != (4, "float", method.group_size) or not weights.boolean("symmetric", True):
        found = f"compressed-tensors ({method.name}) of {bits} bits ({kind}) in groups of {size}"
        raise unsupported(group, f"{found}; symmetric float 4 in groups of {method.group_size} is supported")
    return method


SCHEME = Scheme(
    name="fp4",
    groups={
        "nvfp4-pack-quantized": partial(_group, _NVFP4),
        "mxfp4-pack-quantized": partial(_group, _MXFP4),
    },
    online=None,
    supported="compressed-tensors (nvfp4-pack-quantized, mxfp4-pack-quantized)",
)
