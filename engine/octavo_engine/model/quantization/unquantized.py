"""The linear method of weights that are not quantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain
from octavo_engine.model.quantization.linear_method import LinearShape, Products, Projection, Weights


def parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """Return a parameter in uninitialised memory, without gradients."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


@dataclass(frozen=True, slots=True)
class Unquantized:
    """Weights in the dtype of the products, to which a checkpoint's floating point is cast."""

    name: str = "unquantized"
    row_alignment: int = 1
    column_alignment: int = 1
    rank_alignment: int = 1

    def create(
        self,
        shape: LinearShape,
        dtype: torch.dtype,
        device: torch.device,
        *,
        fp8_products: bool,  # noqa: ARG002
    ) -> Weights:
        """Return the weight alone."""
        return Weights(parameter(shape.rows, shape.columns.size, dtype=dtype, device=device), dtype=dtype)

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield the weight, which is cast and copied."""
        target = weights.weight[projection.rows]
        yield plain(
            f"{projection.name}.weight", target, projection.stored_rows, projection.columns, order=projection.order
        )

    def input_scaling(self, weights: Weights) -> Scaling | None:  # noqa: ARG002
        """Return None: inputs are not quantized."""
        return None

    def apply(
        self, weights: Weights, x: Tensor | Quantized, bias: Tensor | None, addend: Tensor | None, products: Products
    ) -> Tensor:
        """Multiply with the weight."""
        return products.linear(cast("Tensor", x), weights.weight, bias, addend)

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the weight itself."""
        return weights.weight.to(dtype)

    def scratch_bytes(self, weights: Weights) -> int:  # noqa: ARG002
        """Return 0."""
        return 0


UNQUANTIZED = Unquantized()
