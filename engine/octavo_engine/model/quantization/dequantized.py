"""Weights that a checkpoint has quantized and that are computed in floating point: dequantized while loading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.model.checkpoint import CheckpointTensor, Fill, Rows, Span, transposed
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection


class DequantizedProjection:
    """One projection's stored numbers on their way into `target` [rows, columns].

    They lie in CPU memory from the first of their tensors to the last one, and are given back then. Checkpoints hold a
    projection's tensors side by side, so that only a few projections are in memory at the same time.
    """

    def __init__(self, method: LinearMethod, target: Tensor, rows: Span, columns: Span) -> None:
        """`rows` and `columns` are what `target` has of the stored projection."""
        self._method, self._target, self._rows, self._columns = method, target, rows, columns
        device = torch.device("meta" if target.is_meta else "cpu")
        shape = LinearShape((rows.size,), columns)
        self._weights = method.create(shape, target.dtype, device, fp8_products=False)
        self._missing = 0

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """What a checkpoint has of the projection `name`."""
        projection = Projection(name, slice(0, self._rows.size), self._rows, self._columns, has_bias=False)
        stored = [
            transposed(tensor) if tensor.as_columns else tensor
            for tensor in self._method.tensors(self._weights, projection)
        ]
        self._missing = sum(len(tensor.pieces) for tensor in stored if not tensor.optional)
        for tensor in stored:
            pieces = tuple(replace(piece, fill=partial(self._fill, piece.fill)) for piece in tensor.pieces)
            yield tensor if tensor.optional else replace(tensor, pieces=pieces)

    def _fill(self, fill: Fill, target: Tensor, rows: Rows, values: Tensor) -> None:
        fill(target, rows, values)
        self._missing -= 1
        if self._missing:
            return
        self._target.copy_(self._method.dequantized(self._weights, self._target.dtype))
        weights = self._weights
        for part in (weights.weight, weights.scale, weights.zero, weights.minimum, weights.column_groups):
            if part is not None:  # the loader's list of pieces still refers to it
                part.untyped_storage().resize_(0)
