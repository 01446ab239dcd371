"""Matrix multiplication with weights, several projections of the same input fused into one."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.collectives import Collectives
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.layers.fp8 import fp8_linear, multiplies_fp8, suits_fp8
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.quantization import BLOCK, FP8, FP8Scheme, dequantize


class Linear(nn.Module):
    """y = x W^T + b with W [sum(parts), in]: the rows of several projections, one after another.

    Quantized, W is e4m3 and `scale` says how large its numbers are; else there is no `scale`. Where products are not
    computed in 8 bits, it is dequantized in each call and x stays as it is. Memory is not initialised; the loader fills
    it.
    """

    def __init__(
        self,
        in_features: int,
        parts: tuple[int, ...],
        *,
        bias: bool,
        compute: Compute,
        dtype: torch.dtype,
        device: torch.device,
        quantization: FP8Scheme | None = None,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.compute = compute
        self.dtype = dtype
        self.quantization = quantization
        rows = sum(parts)
        self.in_8_bits = quantization is not None and multiplies_fp8(device) and suits_fp8(dtype, rows, in_features)

        def memory(*shape: int, dtype: torch.dtype) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)

        self.weight = memory(rows, in_features, dtype=dtype if quantization is None else FP8)
        self.bias = memory(rows, dtype=dtype) if bias else None
        self.scale: nn.Parameter | None = None
        self.input_scale: nn.Parameter | None = None
        if quantization is not None:
            self.scale = memory(*quantization.scale_shape(rows, in_features), dtype=torch.float32)
            if quantization.activation == "static":
                self.input_scale = memory(1, dtype=torch.float32)

    @property
    def input_scaling(self) -> Scaling | None:
        """How its input is quantized, by the operation that gives it or by itself; None: not at all."""
        if self.quantization is None or not self.in_8_bits:
            return None
        return Scaling(BLOCK if self.quantization.granularity == "block" else None, self.input_scale)

    def forward(self, x: Tensor | Quantized) -> Tensor:
        """[T, in] to [T, sum(parts)]; x is quantized at most as `input_scaling` says."""
        scaling = self.input_scaling
        if scaling is None:
            return self._multiply(cast("Tensor", x), None)
        return fp8_linear(x, scaling, self.weight, cast("Tensor", self.scale), self.bias, self.dtype)

    def add_to(self, residual: Tensor, x: Tensor | Quantized, ranks: Collectives) -> ResidualStream:
        """`residual` [T, sum(parts)], which may be overwritten, and all ranks' products with their x [T, in].

        They are added up in the epilogue of the first rank's product. Products in 8 bits have none that could: each
        rank leaves its residual to the norm that comes next.
        """
        if self.in_8_bits:
            return ResidualSum(ranks.add_up(self(x)), residual)
        return ranks.add_up(self._multiply(cast("Tensor", x), ranks.once(residual)))

    def _multiply(self, x: Tensor, addend: Tensor | None) -> Tensor:
        """By the weight in x's type, added to `addend`, which may be overwritten."""
        weight = self.weight if self.scale is None else dequantize(self.weight, self.scale, x.dtype)
        return self.compute.linear(x, weight, self.bias, addend)
