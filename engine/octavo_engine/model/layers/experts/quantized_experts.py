"""Experts whose weights stay in codes of 4 or 8 bits or in e4m3, which kernels multiply without dequantizing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.experts.experts import ExpertCodes
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, joined, transposed
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The shape of one expert's weight: the rows of its projections, one after another, and their input's columns."""

    parts: tuple[Span, ...]
    columns: Span

    @property
    def rows(self) -> int:
        """This rank's rows of all projections."""
        return sum(part.size for part in self.parts)


class QuantizedExperts(nn.Module):
    """The weights of all experts of a layer for gate and up, or for down, one expert's rows after another's."""

    def __init__(self, method: LinearMethod, count: int, shape: ExpertShape, options: LayerOptions) -> None:
        super().__init__()
        self.method, self.count, self.shape = method, count, shape
        sizes = tuple(part.size for part in shape.parts) * count
        every = LinearShape(sizes, shape.columns)
        self.weights = method.create(every, options.dtype, options.device, fp8_products=False)
        self.stored_parts = nn.ParameterDict(self.weights.parameters)
        """The weights' tensors, registered so that they count among the module's parameters."""
        self.each: list[QuantizedWeight] = []
        """Each expert's weight; empty until all of them are in place."""
        self.codes = ExpertCodes(cast("QuantizedWeight", self.weights.quantized), count, self.each)
        """The weights for kernels."""

    def split(self) -> list[QuantizedWeight]:
        """Return each expert's weight, a view of the memory of all, which must not move any more."""
        every, rows = self.codes.every, self.shape.rows
        self.each[:] = [every.of_rows(first, rows) for first in range(0, self.count * rows, rows)]
        return self.each

    def tensors(self, expert: int, names: Sequence[str]) -> Iterator[CheckpointTensor]:
        """Yield one expert's tensors in a checkpoint, given the name of each projection."""
        yield from joined(self._tensors(expert, names))

    def _tensors(self, expert: int, names: Sequence[str]) -> Iterator[CheckpointTensor]:
        first, columns = expert * self.shape.rows, self.shape.columns
        for name, part in zip(names, self.shape.parts, strict=True):
            projection = Projection(name, slice(first, first + part.size), part, columns, has_bias=False)
            first += part.size
            for tensor in self.method.tensors(self.weights, projection):
                yield transposed(tensor) if tensor.as_columns else tensor


QuantizedPair = tuple[QuantizedExperts, QuantizedExperts]
"""The weights of gate and up, and those of down."""


def kept_experts(
    count: int,
    gate_up: tuple[Sequence[str], ExpertShape],
    down: tuple[Sequence[str], ExpertShape],
    options: LayerOptions,
    *,
    plain: bool,
) -> QuantizedPair | None:
    """Return memory for `count` experts whose codes the device multiplies; None: they are dequantized when loaded.

    `gate_up` and `down` have the names of their projections, with `{expert}` for the number. All experts have to be
    stored by one linear method, and this rank must have complete groups of it. `plain`: whether they are gated experts
    with SiLU, which are all that Triton kernels compute.
    """
    kernels = options.support.keeps_codes or (plain and options.support.triton_experts)
    if not kernels or not all("{expert}" in name for name in (*gate_up[0], *down[0])):
        return None
    methods = [_method(names, count, shape, options) for names, shape in (gate_up, down)]
    if methods[0] is None or methods[1] is None:
        return None
    weights_of_gate_up = QuantizedExperts(methods[0], count, gate_up[1], options)
    return weights_of_gate_up, QuantizedExperts(methods[1], count, down[1], options)


def _method(names: Sequence[str], count: int, shape: ExpertShape, options: LayerOptions) -> LinearMethod | None:
    """Return the linear method with which a weight can stay in codes; None: there is none."""
    stored = {options.kept_by(name.replace("{expert}", str(expert))) for name in names for expert in range(count)}
    if len(stored) > 1:
        return None
    (method,) = stored
    spans = ((shape.columns, method.column_alignment), *((part, method.row_alignment) for part in shape.parts))
    if any(end % alignment for part, alignment in spans for end in (part.start, part.start + part.size)):
        return None
    linear, meta = LinearShape((shape.rows,), shape.columns), torch.device("meta")
    codes = method.create(linear, options.dtype, meta, fp8_products=False).quantized
    return method if codes is not None and _multiplied(codes, options) else None


def _multiplied(codes: QuantizedWeight, options: LayerOptions) -> bool:
    """Return True if the device's kernels multiply these codes."""
    if options.support.keeps_codes:
        return codes.known_to_kernels
    from octavo_engine.kernels.experts.moe import multiplies  # it imports Triton, which takes a CPU's engine a second

    return multiplies(codes)
