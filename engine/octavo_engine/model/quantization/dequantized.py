"""Dequantizes weights while they are loaded, for layers that are computed in floating point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Fill, Rows, Span, plain, transposed, write
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Products, Projection, Weights
from octavo_engine.model.quantization.unquantized import UNQUANTIZED


class DequantizedProjection:
    """Collects one projection's stored tensors, and dequantizes them into `target` [rows, columns].

    They are in CPU memory from the first of the projection's tensors to the last one, and are then freed. Checkpoints
    have a projection's tensors side by side, so that only a few projections are in memory at the same time.
    """

    def __init__(self, method: LinearMethod, target: Tensor, projection: Projection) -> None:
        """`target` has the projection's rows, in its order, and its columns."""
        rows, columns = projection.stored_rows, projection.columns
        check_ends(rows, method.row_alignment)
        check_ends(columns, method.column_alignment)
        self._method, self._target, self._order = method, target, projection.order
        self._projection = replace(projection, rows=slice(0, rows.size), order=None, index=0)
        device = torch.device("meta" if target.is_meta else "cpu")
        shape = LinearShape((rows.size,), columns)
        self._weights = method.create(shape, target.dtype, device, fp8_products=False)
        self._missing = 0

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the projection's tensors in a checkpoint; those stored as columns are not transposed yet."""
        stored = list(self._method.tensors(self._weights, self._projection))
        self._missing = sum(len(tensor.pieces) for tensor in stored if not tensor.optional)
        for tensor in stored:
            pieces = tuple(replace(piece, fill=partial(self._fill, piece.fill)) for piece in tensor.pieces)
            yield tensor if tensor.optional else replace(tensor, pieces=pieces, at_once=True)

    def _fill(self, fill: Fill, target: Tensor, rows: Rows, values: Tensor) -> None:
        fill(target, rows, values)
        self._missing -= 1
        if self._missing:
            return
        weights = self._weights
        numbers = self._method.dequantized(weights, self._target.dtype)
        order = slice(0, len(numbers)) if self._order is None else self._order.to(self._target.device)
        write(self._target, order, numbers)
        others = (weights.zero, weights.minimum, weights.row_scale, weights.super_scale, weights.super_minimum)
        for part in (weights.weight, weights.scale, weights.column_groups, *others):
            if part is not None:  # the loader's list of pieces still refers to it
                part.untyped_storage().resize_(0)


def dequantized_tensors(
    method: LinearMethod, name: str, target: Tensor, rows: Span, columns: Span
) -> Iterator[CheckpointTensor]:
    """Yield the tensors of the projection `name`, stored by `method`; they fill `target` in floating point."""
    if method is UNQUANTIZED:
        yield plain(f"{name}.weight", target, rows, columns)
    else:
        projection = Projection(name, slice(0, rows.size), rows, columns, has_bias=False)
        for tensor in DequantizedProjection(method, target, projection).tensors():
            yield transposed(tensor) if tensor.as_columns else tensor


@dataclass(frozen=True, slots=True)
class Dequantized:
    """The method of a linear layer that is computed in floating point, however each of its projections is stored."""

    stored_by: tuple[LinearMethod, ...]
    """The stored method of each projection."""
    row_alignment: int = 1
    column_alignment: int = 1
    rank_alignment: int = 1

    @property
    def name(self) -> str:
        """The name for the plan's table and log lines."""
        return ", ".join(f"{method.name}, dequantized" for method in dict.fromkeys(self.stored_by))

    def create(self, shape: LinearShape, dtype: torch.dtype, device: torch.device, *, fp8_products: bool) -> Weights:
        """Return the weight alone."""
        return UNQUANTIZED.create(shape, dtype, device, fp8_products=fp8_products)

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield the tensors of the method that the checkpoint's weight is stored with."""
        method = self.stored_by[projection.index]
        if method is UNQUANTIZED:
            yield from UNQUANTIZED.tensors(weights, projection)
            return
        yield from DequantizedProjection(method, weights.weight[projection.rows], projection).tensors()

    def input_scaling(self, weights: Weights) -> Scaling | None:
        """Return None: inputs are not quantized."""
        return UNQUANTIZED.input_scaling(weights)

    def apply(
        self, weights: Weights, x: Tensor | Quantized, bias: Tensor | None, addend: Tensor | None, products: Products
    ) -> Tensor:
        """Multiply with the weight in floating point."""
        return UNQUANTIZED.apply(weights, x, bias, addend, products)

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the weight itself."""
        return UNQUANTIZED.dequantized(weights, dtype)

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the scratch memory of unquantized weights, none."""
        return UNQUANTIZED.scratch_bytes(weights)


def check_ends(part: Span, alignment: int) -> None:
    """Raise ConfigurationError if a rank's part begins or ends within what the checkpoint stores as one."""
    end = part.start + part.size
    if part.start % alignment or (end % alignment and end != part.total):
        raise ConfigurationError(
            f"--tensor-parallel-size: a rank would have {part.what or 'rows'} {part.start} to {end} of a weight that "
            f"the checkpoint stores by {alignment} at a time; take fewer ranks, or a number that divides evenly"
        )
