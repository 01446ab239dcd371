"""Weights as whole numbers of 8 bits, a scale for each output channel: `--quantization int8`, and checkpoints' own.

A weight is dequantized in each product, unless kernels multiply its codes. Activations are not quantized, even if a
checkpoint was made for activations in 8 bits; this is nearer to the original model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, ignored, plain
from octavo_engine.model.quantization.linear_method import LinearShape, Projection, Weights
from octavo_engine.model.quantization.loading import quantize_into, write_scales
from octavo_engine.model.quantization.pieces import PIECE_BYTES, dequantize_rows, piece_size
from octavo_engine.model.quantization.scheme import Scheme
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.quantization.weight_only import WeightOnly

_LARGEST = 127


@dataclass(frozen=True, slots=True)
class INT8(WeightOnly):
    """The linear method of int8 values [out, in] with float32 scales [out, 1]."""

    online: bool
    """Whether weights are quantized while they are loaded; else a checkpoint has values and scales."""
    name: str = "int8"
    scale_name: str = "weight_scale"
    """The ending of the scales' name in the checkpoint."""
    largest_is_stored: bool = False
    """Whether the checkpoint has, instead of a scale, the number that code 127 means (bitsandbytes)."""
    row_alignment: int = 1
    column_alignment: int = 1

    def create(
        self,
        shape: LinearShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8_products: bool,  # noqa: ARG002
    ) -> Weights:
        """Create values and scales."""
        columns = shape.columns.size
        values = parameter(shape.rows, columns, dtype=torch.int8, device=device)
        scale = parameter(shape.rows, 1, dtype=torch.float32, device=device)
        quantized = QuantizedWeight([QuantizedPart(codes=values, scale=scale, bits=8, columns=columns, group=None)])
        return Weights(values, scale, quantized=quantized, dtype=dtype)

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield a weight to quantize, or values with a scale for each row."""
        rows, stored, order = projection.rows, projection.stored_rows, projection.order
        weight, scale = weights.weight[rows], cast("Tensor", weights.scale)[rows]
        values = plain(f"{projection.name}.weight", weight, stored, projection.columns, order=order)
        if self.online:
            (piece,) = values.pieces
            fill = partial(quantize_into, quantize, (scale,))
            yield replace(values, pieces=(Piece(weight, piece.part, fill, order),))
            return
        yield replace(values, types=("I8",))
        scales = plain(f"{projection.name}.{self.scale_name}", scale, stored, order=order)
        (piece,) = scales.pieces
        write_them = _write_largest if self.largest_is_stored else write_scales
        yield replace(scales, squeezed=True, pieces=(replace(piece, fill=write_them),))
        for other in ("weight_format",) if self.largest_is_stored else ("input_scale", "input_zero_point"):
            yield ignored(f"{projection.name}.{other}")

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the numbers [out, in], computed in float32 and rounded to `dtype` once."""
        weight, scale = weights.weight, cast("Tensor", weights.scale)
        result = torch.empty(weight.shape, dtype=dtype, device=weight.device)
        dequantize_rows(lambda rows: weight[rows].float().mul_(scale[rows]), slice(0, len(weight)), result)
        return result

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of the weight in the dtype of the products, and of a piece of it in float32."""
        rows, columns = weights.weight.shape
        return rows * columns * weights.dtype.itemsize + piece_size(rows, columns) * PIECE_BYTES


def _write_largest(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Write the scales of rows from their largest numbers, which are 0 for rows of zeros."""
    write_scales(target, rows, values.view(-1, 1) / _LARGEST, or_zero=True)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return int8 values and float32 scales [rows, 1] of a weight [rows, columns]; each row's largest value is 127."""
    wide = weight.float()
    scale = wide.abs().amax(dim=1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny * _LARGEST) / _LARGEST
    return (wide / scale).round_().clamp_(-_LARGEST, _LARGEST).to(torch.int8), scale


SCHEME = Scheme(
    name="int8",
    online=INT8(online=True),
    online_head=INT8(online=True),
    supported="int8 weights (--quantization int8)",
)
