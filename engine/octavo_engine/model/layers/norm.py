"""Root mean square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.model.layers.compute import TorchCompute


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(
        self, size: int, eps: float, *, compute: TorchCompute, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)
        self.eps = eps
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        """[T, size] to the same."""
        return self.compute.rms_norm(x, self.weight, self.eps)
