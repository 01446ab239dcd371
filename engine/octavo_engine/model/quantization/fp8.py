"""Weights in 8-bit floating point (e4m3): checkpoints of three formats, and `--quantization fp8`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint import FLOATS, CheckpointTensor, Piece, Rows, plain
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.e4m3 import (
    BLOCK,
    FP8,
    dequantize,
    fp8_linear,
    quantize_rows,
    suits_fp8,
)
from octavo_engine.model.quantization.linear_method import LinearShape, Products, Projection, Weights
from octavo_engine.model.quantization.loading import check_scales, quantize_into, write_scales
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.selection import Quantization, names_in, not_quantized
from octavo_engine.model.quantization.unquantized import parameter

_FLOAT32_BYTES = 4
_AS_STORED = ("F8_E4M3",)
_SCALES = (*FLOATS, "F8_E8M0")
"""The types of stored scales; with DeepSeek's `scale_fmt` `ue8m0` they are powers of two, which may be stored as e8m0.
"""
Activation = Literal["dynamic", "static", "none"]


@dataclass(frozen=True, slots=True)
class FP8Scheme:
    """The linear method of weights in e4m3 with float32 scales."""

    granularity: Literal["tensor", "channel", "block"]
    """The unit that has a scale of its own in the checkpoint: a weight, each of its rows (output channels), or each
    block of BLOCK x BLOCK. In memory a weight's one scale is repeated for each of its rows, as several weights are
    fused."""
    activation: Activation = "dynamic"
    """Scales of activations, where they are quantized too: from their own numbers, or from the checkpoint; `none`: they
    are never quantized."""
    scale_name: str | None = "weight_scale"
    """The checkpoint's name of scales; None: it has none, and weights are quantized while they are loaded."""
    name: str = "fp8"

    @property
    def row_alignment(self) -> int:
        """Projections consist of complete blocks."""
        return BLOCK if self.granularity == "block" else 1

    @property
    def column_alignment(self) -> int:
        """Projections consist of complete blocks."""
        return self.row_alignment

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the shape of the scales of a weight [rows, columns] in memory."""
        return (-(-rows // BLOCK), -(-columns // BLOCK)) if self.granularity == "block" else (rows, 1)

    def create(self, shape: LinearShape, dtype: torch.dtype, device: torch.device, *, fp8_products: bool) -> Weights:
        """Create the parameters; products are in 8 bits if `dtype` and sizes allow it."""
        rows, columns = shape.rows, shape.columns.size
        static, in_8_bits = self.activation == "static", fp8_products and self.activation != "none"
        return Weights(
            parameter(rows, columns, dtype=FP8, device=device),
            parameter(*self.scale_shape(rows, columns), dtype=torch.float32, device=device),
            input_scale=nn.Parameter(torch.zeros(1, device=device), requires_grad=False) if static else None,
            dtype=dtype,
            in_8_bits=in_8_bits and suits_fp8(dtype, rows, columns),
            leaves_residual=in_8_bits and dtype != torch.float32,
        )

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield a weight with its scales, or a weight to quantize; and the input scale if activations are static."""
        spans, rows = (projection.stored_rows, projection.columns), projection.rows
        name, weight, scale = f"{projection.name}.weight", weights.weight[rows], cast("Tensor", weights.scale)
        part, shape = tuple(span.slice for span in spans), tuple(span.total for span in spans)
        if self.scale_name is None:
            fill = partial(quantize_into, quantize_rows, (scale[rows],))
            yield CheckpointTensor(name=name, shape=shape, pieces=(Piece(weight, part, fill, projection.order),))
            return
        pieces = (Piece(weight, part, order=projection.order),)
        yield CheckpointTensor(name=name, shape=shape, pieces=pieces, types=_AS_STORED)
        yield self._scales(f"{projection.name}.{self.scale_name}", scale, projection)
        if weights.input_scale is not None:
            # Projections of the same input take the largest input scale.
            largest = Piece(weights.input_scale, fill=_largest)
            yield CheckpointTensor(name=f"{projection.name}.input_scale", shape=(), pieces=(largest,), squeezed=True)

    def _scales(self, name: str, scale: Tensor, projection: Projection) -> CheckpointTensor:
        rows, stored, columns = projection.rows, projection.stored_rows, projection.columns
        if self.granularity == "tensor":
            return CheckpointTensor(name=name, shape=(), pieces=(Piece(scale[rows], fill=_repeat),), squeezed=True)
        if self.granularity == "channel":
            scales = plain(name, scale[rows], stored, order=projection.order)
        else:
            _check_order(projection)
            blocks = slice(rows.start // BLOCK, -(-rows.stop // BLOCK))
            scales = plain(name, scale[blocks], stored.by(BLOCK), columns.by(BLOCK))
        pieces = tuple(replace(piece, fill=write_scales) for piece in scales.pieces)
        return replace(scales, squeezed=True, types=_SCALES, pieces=pieces)

    def input_scaling(self, weights: Weights) -> Scaling | None:
        """Return the scaling of inputs: by token, by blocks of columns, or by the checkpoint's scale."""
        if not weights.in_8_bits:
            return None
        return Scaling(BLOCK if self.granularity == "block" else None, weights.input_scale)

    def apply(
        self, weights: Weights, x: Tensor | Quantized, bias: Tensor | None, addend: Tensor | None, products: Products
    ) -> Tensor:
        """Multiply in 8 bits, or with the dequantized weight."""
        weight, scale = weights.weight, cast("Tensor", weights.scale)
        scaling = self.input_scaling(weights)
        if scaling is None:
            x = cast("Tensor", x)
            return products.linear(x, self.dequantized(weights, x.dtype), bias, addend)
        return fp8_linear(x, scaling, weight, scale, bias, weights.dtype)

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the numbers [out, in], computed in float32 and rounded to `dtype` once."""
        return dequantize(weights.weight, cast("Tensor", weights.scale), dtype)

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of weight and block scales in float32, and of the weight in `dtype`; 0 for products in 8
        bits."""
        if weights.in_8_bits:
            return 0
        widened = 0 if self.granularity != "block" else cast("Tensor", weights.scale).numel() * BLOCK * _FLOAT32_BYTES
        return widened + weights.weight.numel() * (_FLOAT32_BYTES + weights.dtype.itemsize)


def _check_order(projection: Projection) -> None:
    """Raise ModelLoadError if the order moves rows into other blocks, where they would get other scales."""
    order = projection.order
    if order is not None and not torch.equal(order // BLOCK, torch.arange(len(order), device="cpu") // BLOCK):
        raise ModelLoadError(
            f"{projection.name}.weight: RoPE needs its rows in another order, which takes them out of the blocks of "
            f"{BLOCK} rows that have a scale; take a checkpoint with a scale for each tensor or channel"
        )


def _repeat(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    """Fill the scale of each row with the weight's one scale."""
    check_scales(values)
    target.fill_(values.item())


def _largest(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    check_scales(values)
    target.copy_(torch.maximum(target, values.float().to(target.device).view(1)))


def _fp8(config: Fields) -> Quantization:
    lists = [name for field in ("modules_to_not_convert", "ignored_layers") for name in names_in(config, field)]
    return Quantization(_method(config), (not_quantized(config, lists),))


def _method(config: Fields) -> FP8Scheme:
    """Read the format of DeepSeek-V3 and Qwen3 (blocks), or AutoFP8's (a scale for each weight)."""
    activation = config.text("activation_scheme", default="dynamic")
    if config.text("fmt", default="e4m3") not in ("e4m3", "float8_e4m3fn") or activation not in ("dynamic", "static"):
        raise unsupported(config, "fp8 weights of another form than e4m3 with static or dynamic activation_scheme")
    if not config.has("weight_block_size"):
        return FP8Scheme("tensor", "static" if activation == "static" else "dynamic")
    if config.integers("weight_block_size") != (BLOCK, BLOCK) or activation != "dynamic":
        raise unsupported(config, "fp8 blocks other than 128 x 128, or with static activation scales")
    return FP8Scheme("block", scale_name="weight_scale_inv")


def _group(group: Fields, weights: Fields) -> FP8Scheme:
    """Read llm-compressor's `float-quantized`. Dynamic scales of activations are by token, or by 128 columns where
    weights have blocks, even if the checkpoint says one for all tokens, which is coarser."""
    inputs = group.mapping("input_activations")
    for part in (weights, *((inputs,) if inputs is not None else ())):
        if part.integer("num_bits", 0, 64, default=8) != 8 or part.text("type", default="float") != "float":
            raise unsupported(group, "compressed-tensors other than of 8-bit floats")
    activation: Activation = "none" if inputs is None else "dynamic" if inputs.boolean("dynamic", False) else "static"
    match weights.text("strategy", default="?"):
        case "tensor":
            return FP8Scheme("tensor", activation)
        case "channel":
            return FP8Scheme("channel", activation)
        case "block" if weights.integers("block_structure") == (BLOCK, BLOCK) and activation != "static":
            return FP8Scheme("block", activation)
    raise unsupported(group, "compressed-tensors with scales that are neither by tensor, by channel nor by 128 x 128")


SCHEME = Scheme(
    name="fp8",
    readers={"fp8": _fp8},
    groups={"float-quantized": _group},
    online=FP8Scheme("channel", scale_name=None),
    supported="float8 e4m3 weights with activations in 8 bits: fp8 (a scale for each weight, or for each block of "
    "128 x 128), compressed-tensors (float-quantized or naive-quantized, by tensor, channel or such blocks)",
)
