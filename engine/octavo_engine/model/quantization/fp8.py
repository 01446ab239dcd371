"""Weights in 8-bit floating point (e4m3): checkpoints of three formats, and `--quantization fp8`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import FLOATS, CheckpointTensor, Fill, Piece, Rows, Span, plain, write
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
from octavo_engine.model.quantization.module_rules import Quantization, names_in, not_quantized
from octavo_engine.model.quantization.pieces import PIECE_BYTES, dequantize_rows, piece_size
from octavo_engine.model.quantization.scheme import Scheme, unsupported
from octavo_engine.model.quantization.unquantized import parameter

_LARGEST_BLOCK = 1 << 20
"""The most rows or columns of a block."""
_AS_STORED = ("F8_E4M3",)
_SCALES = (*FLOATS, "F8_E8M0")
"""The types of stored scales; with DeepSeek's `scale_fmt` `ue8m0` they are powers of two, which may be stored as e8m0.
"""
_POWERS = ("U8", "F8_E8M0")
Activation = Literal["dynamic", "static", "none"]


@dataclass(frozen=True, slots=True)
class FP8Scheme:
    """The linear method of weights in e4m3 with float32 scales."""

    granularity: Literal["tensor", "channel", "block"]
    """The unit that has a scale of its own in the checkpoint: a weight, each of its rows (output channels), or each
    `block`. In memory a weight's one scale is repeated for each of its rows, as several weights are fused. So are the
    scales of blocks, as projections and ranks' parts may begin within a block, unless products are in 8 bits."""
    activation: Activation = "dynamic"
    """Scales of activations, where they are quantized too: from their own numbers, or from the checkpoint; `none`: they
    are never quantized."""
    scale_name: str | None = "weight_scale"
    """The checkpoint's name of scales; None: it has none, and weights are quantized while they are loaded."""
    weight_name: str = "weight"
    """The checkpoint's name of a weight."""
    input_scale_name: str = "input_scale"
    """The checkpoint's name of static scales of activations."""
    block: tuple[int, int] = (BLOCK, BLOCK)
    """The rows and columns of a block; the last ones of a weight may be smaller."""
    scales_in_powers: bool = False
    """Whether blocks' scales are stored as powers of two (e8m0), which the type of their tensor may not say."""
    name: str = "fp8"
    row_alignment: int = 1
    column_alignment: int = 1

    @property
    def rank_alignment(self) -> int:
        """Products in 8 bits need complete blocks."""
        return max(self.block) if self.granularity == "block" else 1

    def _scale_shape(self, shape: LinearShape, *, in_8_bits: bool) -> tuple[int, int]:
        """Return the shape of a weight's scales in memory."""
        if self.granularity != "block":
            return shape.rows, 1
        columns = shape.columns.by(self.block[1]).size
        return (shape.rows // self.block[0] if in_8_bits else shape.rows), columns

    def _suits(self, shape: LinearShape) -> bool:
        """Return True if products in 8 bits are possible with this rank's part of a weight."""
        sizes = (*shape.parts, shape.columns.start, shape.columns.size)
        return self.granularity != "block" or (
            self.block == (BLOCK, BLOCK) and all(size % BLOCK == 0 for size in sizes)
        )

    def create(self, shape: LinearShape, dtype: torch.dtype, device: torch.device, *, fp8_products: bool) -> Weights:
        """Create the parameters; products are in 8 bits if `dtype` and sizes allow it."""
        rows, columns = shape.rows, shape.columns.size
        static, allowed = self.activation == "static", fp8_products and self.activation != "none"
        in_8_bits = allowed and suits_fp8(dtype, rows, columns) and self._suits(shape)
        weights = Weights(
            parameter(rows, columns, dtype=FP8, device=device),
            parameter(*self._scale_shape(shape, in_8_bits=in_8_bits), dtype=torch.float32, device=device),
            input_scale=nn.Parameter(torch.zeros(1, device=device), requires_grad=False) if static else None,
            first_column=shape.columns.start % self.block[1],
            dtype=dtype,
            in_8_bits=in_8_bits,
            leaves_residual=allowed and dtype != torch.float32,
        )
        weights.quantized = None if in_8_bits else self._codes(weights, shape.columns)
        return weights

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield a weight with its scales, or a weight to quantize; and the input scale if activations are static."""
        spans, rows = (projection.stored_rows, projection.columns), projection.rows
        name = f"{projection.name}.{self.weight_name}"
        weight, scale = weights.weight[rows], cast("Tensor", weights.scale)
        part, shape = tuple(span.slice for span in spans), tuple(span.total for span in spans)
        if self.scale_name is None:
            fill = partial(quantize_into, quantize_rows, (scale[rows],))
            yield CheckpointTensor(name=name, shape=shape, pieces=(Piece(weight, part, fill, projection.order),))
            return
        pieces = (Piece(weight, part, order=projection.order),)
        yield CheckpointTensor(name=name, shape=shape, pieces=pieces, types=_AS_STORED)
        yield self._scales(f"{projection.name}.{self.scale_name}", scale, projection, by_block=weights.in_8_bits)
        if weights.input_scale is not None:
            # Projections of the same input take the largest input scale.
            largest = Piece(weights.input_scale, fill=_largest)
            name = f"{projection.name}.{self.input_scale_name}"
            yield CheckpointTensor(name=name, shape=(), pieces=(largest,), squeezed=True)

    def _scales(self, name: str, scale: Tensor, projection: Projection, *, by_block: bool) -> CheckpointTensor:
        rows, stored, columns = projection.rows, projection.stored_rows, projection.columns
        if self.granularity == "tensor":
            return CheckpointTensor(name=name, shape=(), pieces=(Piece(scale[rows], fill=_repeat),), squeezed=True)
        if self.granularity == "channel":
            scales = plain(name, scale[rows], stored, order=projection.order)
        elif not by_block:
            return self._repeated_blocks(name, scale, projection)
        else:
            _check_complete(projection)
            blocks = slice(rows.start // BLOCK, -(-rows.stop // BLOCK))
            scales = plain(name, scale[blocks], stored.by(BLOCK), columns.by(BLOCK))
        pieces = tuple(replace(piece, fill=write_scales) for piece in scales.pieces)
        return replace(scales, squeezed=True, types=_SCALES, pieces=pieces)

    def _repeated_blocks(self, name: str, scale: Tensor, projection: Projection) -> CheckpointTensor:
        """Return the tensor of blocks' scales, which fills a row of scales for each row of the weight.

        Of a block that two projections of a stored tensor share, the first one's description counts the scales.
        """
        side, stored, columns = self.block[0], projection.stored_rows, projection.columns.by(self.block[1])
        before, end = (-(-row // side) for row in (projection.first_row, projection.first_row + stored.total))
        rows = torch.arange(stored.size, device="cpu") + projection.first_row + stored.start
        blocks = rows // side - before
        first, last = (int(blocks[0]), int(blocks[-1]) + 1) if stored.size else (0, 0)
        piece = Piece(
            scale[projection.rows], (slice(first, last), columns.slice), _repeat_rows(blocks - first, projection.order)
        )
        shape, types = (end - before, columns.total), _POWERS if self.scales_in_powers else _SCALES
        return CheckpointTensor(name=name, shape=shape, pieces=(piece,), types=types, squeezed=True, at_once=True)

    def _codes(self, weights: Weights, columns: Span) -> QuantizedWeight | None:
        """Return a weight that is not multiplied in 8 bits for Triton kernels; None where ranks' columns are not
        complete blocks, even if this rank's begin with one, as the first rank's memory is planned for all."""
        group, end = self.block[1] if self.granularity == "block" else None, columns.start + columns.size
        if group is not None and (columns.start % group or (end % group and end < columns.total)):
            return None
        scale = cast("Tensor", weights.scale)
        return QuantizedWeight(
            [QuantizedPart(codes=weights.weight, scale=scale, bits=8, columns=columns.size, group=group)]
        )

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
        weight, scale = weights.weight, cast("Tensor", weights.scale)
        group = self.block[1] if self.granularity == "block" else None
        result = torch.empty(weight.shape, dtype=dtype, device=weight.device)

        def numbers(rows: slice) -> Tensor:
            return dequantize(weight[rows], scale[rows], group, weights.first_column)

        dequantize_rows(numbers, slice(0, len(weight)), result)
        return result

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes of the weight in `dtype`, and of a piece of it in float32; 0 for products in 8 bits."""
        rows, columns = weights.weight.shape
        dequantized = rows * columns * weights.dtype.itemsize + piece_size(rows, columns) * PIECE_BYTES
        return 0 if weights.in_8_bits else dequantized


def _check_complete(projection: Projection) -> None:
    """Raise ModelLoadError if rows begin within a block or the order moves them into other blocks."""
    order, stored = projection.order, projection.stored_rows
    parts = (projection.first_row, projection.rows.start, stored.start, stored.size)
    moved = order is not None and not torch.equal(order // BLOCK, torch.arange(len(order), device="cpu") // BLOCK)
    if moved or any(part % BLOCK for part in parts):
        raise ModelLoadError(
            f"{projection.name}.weight: a layer needs its rows in another order, which takes them out of the blocks "
            f"of {BLOCK} rows that have a scale; take a checkpoint with a scale for each tensor or channel"
        )


def _repeat_rows(blocks: Tensor, order: Tensor | None) -> Fill:
    """Return the function that fills each row's scales with those of its block; `order`: the row that each becomes."""

    def fill(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
        values = values.view(torch.float8_e8m0fnu) if values.dtype == torch.uint8 else values
        check_scales(values)
        write(target, slice(0, len(blocks)) if order is None else order, values.float()[blocks])

    return fill


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


def _fbgemm(config: Fields) -> Quantization:
    """Read Meta's format: a scale for each row. Activations have a scale for each token, which `activation_scale_ub`
    bounds; here it is not bounded, so that large activations are not cut off."""
    return Quantization(FP8Scheme("channel"), (not_quantized(config, names_in(config, "modules_to_not_convert")),))


def _method(config: Fields) -> FP8Scheme:
    """Read the format of DeepSeek-V3 and Qwen3 (blocks), or one with a scale for each weight: AutoFP8's, or that of
    transformers, which writes that there are no blocks."""
    activation = config.text("activation_scheme", default="dynamic")
    form = config.text("fmt", default="e4m3")
    if form not in ("e4m3", "float8_e4m3fn") or activation not in ("dynamic", "static"):
        found = f"fp8 with fmt {form} and activation_scheme {activation}"
        raise unsupported(config, f"{found}; fmt e4m3 with static or dynamic is supported")
    if not config.has("weight_block_size"):
        scheme = FP8Scheme("tensor", "static" if activation == "static" else "dynamic")
        if "weight_block_size" in config.values:
            return replace(scheme, scale_name="weight_scale_inv", input_scale_name="activation_scale")
        return scheme
    if activation != "dynamic":
        raise unsupported(config, "fp8 blocks with static activation scales, which must be dynamic")
    return FP8Scheme("block", scale_name="weight_scale_inv", block=_block(config, "weight_block_size"))


def _block(config: Fields, name: str) -> tuple[int, int]:
    """Return the rows and columns of a block."""
    sizes = config.integers(name)
    if len(sizes) != 2 or min(sizes) < 1 or max(sizes) > _LARGEST_BLOCK:
        raise config.wrong(name, list(sizes), "is not the rows and columns of a block")
    return sizes[0], sizes[1]


def _group(group: Fields, weights: Fields) -> FP8Scheme:
    """Read llm-compressor's `float-quantized`. Dynamic scales of activations are by token, or by 128 columns where
    weights have blocks, even if the checkpoint says one for all tokens, which is coarser."""
    inputs = group.mapping("input_activations")
    for part in (weights, *((inputs,) if inputs is not None else ())):
        bits, kind = part.integer("num_bits", 0, 64, default=8), part.text("type", default="float")
        if (bits, kind) != (8, "float"):
            raise unsupported(group, f"compressed-tensors of {bits} bits ({kind}); float 8 is supported")
    activation: Activation = "none" if inputs is None else "dynamic" if inputs.boolean("dynamic", False) else "static"
    strategy = weights.text("strategy", default="?")
    match strategy:
        case "tensor":
            return FP8Scheme("tensor", activation)
        case "channel":
            return FP8Scheme("channel", activation)
        case "block" if activation != "static":
            return FP8Scheme("block", activation, block=_block(weights, "block_structure"))
    found = f"compressed-tensors with strategy {strategy} and activation scales {activation}"
    raise unsupported(group, f"{found}; tensor, channel, and block without static ones are supported")


SCHEME = Scheme(
    name="fp8",
    readers={"fp8": _fp8, "fbgemm_fp8": _fbgemm},
    groups={"float-quantized": _group},
    online=FP8Scheme("channel", scale_name=None),
    supported="float8 e4m3 weights with activations in 8 bits: fp8 (a scale for each weight, or for each block), "
    "fbgemm_fp8, compressed-tensors (float-quantized or naive-quantized, by tensor, channel or block)",
)
