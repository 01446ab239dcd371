"""Root mean square normalisation (arXiv 1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.layers.compute import TorchCompute
from octavo_engine.model.layers.stream import Stream


class RMSNorm(nn.Module):
    """x / rms(x) * weight."""

    def __init__(
        self, size: int, eps: float, *, compute: TorchCompute, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)
        self.eps = eps
        self.compute = compute

    def forward(self, stream: Stream, scaling: Scaling | None = None) -> tuple[Tensor | Quantized, Tensor]:
        """`stream` [T, size] normalised, for a linear that wants it quantized by `scaling`; and the stream itself."""
        return self.compute.norm(stream, self.weight, self.eps, scaling)
