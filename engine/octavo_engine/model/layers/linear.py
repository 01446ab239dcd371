"""Matrix multiplication with weights, several projections of the same input fused into one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.model.layers.compute import TorchCompute


class Linear(nn.Module):
    """y = x W^T + b with W [sum(parts), in]: the rows of several projections, one after another.

    Memory is not initialised; the loader fills it.
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
    ) -> None:
        super().__init__()
        self.parts = parts
        self.compute = compute
        rows = sum(parts)
        self.weight = nn.Parameter(torch.empty(rows, in_features, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype, device=device), requires_grad=False) if bias else None

    def forward(self, x: Tensor, addend: Tensor | None = None) -> Tensor:
        """[T, in] to [T, sum(parts)], added to `addend` of that shape, which may be overwritten."""
        return self.compute.linear(x, self.weight, self.bias, addend)
