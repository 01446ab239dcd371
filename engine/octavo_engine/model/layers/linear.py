"""Matrix multiplication with weights, several projections of the same input fused into one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.model.layers.compute import TorchCompute
from octavo_engine.model.layers.fp8 import fp8_linear, multiplies_fp8, suits_fp8
from octavo_engine.model.quantization import FP8, FP8Scheme, dequantize


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
        compute: TorchCompute,
        dtype: torch.dtype,
        device: torch.device,
        quantization: FP8Scheme | None = None,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.compute = compute
        self.quantization = quantization
        rows = sum(parts)
        self.in_8_bits = multiplies_fp8(device) and suits_fp8(dtype, rows, in_features)

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

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """[T, in] to [T, sum(parts)], added to `addend` of that shape, which may be overwritten."""
        if self.scale is None:
            return self.compute.linear(x, self.weight, self.bias, addend)
        if not self.in_8_bits:
            return self.compute.linear(x, dequantize(self.weight, self.scale, x.dtype), self.bias, addend)
        product = fp8_linear(x, self.weight, self.scale, self.input_scale, self.bias)
        return product if addend is None else addend + product
