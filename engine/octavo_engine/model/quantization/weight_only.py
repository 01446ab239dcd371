"""The base of linear methods that quantize only weights, not activations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import cast

import torch
from torch import Tensor

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.quantization.linear_method import Products, Weights


class WeightOnly(ABC):
    """A linear method (`LinearMethod`) that multiplies with the dequantized weight.

    It is the reference for kernels that multiply the stored weight (`Weights.quantized`). It cannot be used for weights
    that these kernels have interleaved, or whose columns were sorted for them (act_order.py).
    """

    __slots__ = ()

    @property
    @abstractmethod
    def row_alignment(self) -> int:
        """The multiple that rows must be of."""

    @property
    @abstractmethod
    def column_alignment(self) -> int:
        """The multiple that columns must be of."""

    @property
    def rank_alignment(self) -> int:
        """Ranks have complete groups of rows and columns."""
        return max(self.row_alignment, self.column_alignment)

    def input_scaling(self, weights: Weights) -> Scaling | None:  # noqa: ARG002
        """None: inputs are not quantized."""
        return None

    def apply(
        self, weights: Weights, x: Tensor | Quantized, bias: Tensor | None, addend: Tensor | None, products: Products
    ) -> Tensor:
        """Return x [T, in] times the dequantized weight, transposed, plus bias [out] and addend [T, out]."""
        x = cast("Tensor", x)
        return products.linear(x, self.dequantized(weights, x.dtype), bias, addend)

    @abstractmethod
    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weight [out, in], computed in float32 and rounded to `dtype` once."""
