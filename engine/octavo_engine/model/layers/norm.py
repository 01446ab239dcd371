"""Normalisation of the residual stream, or of what a part of a layer adds to it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.kernels.norm_weights import NormKind, NormWeights
from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.layers.residual import ResidualStream


class Norm(nn.Module):
    """Root mean square (arXiv 1910.07467) or layer normalisation (arXiv 1607.06450) of [T, size]."""

    def __init__(
        self,
        size: int,
        eps: float,
        *,
        compute: Compute,
        dtype: torch.dtype,
        device: torch.device,
        kind: NormKind = "rms",
        bias: bool = False,
        weight_offset: float = 0.0,
    ) -> None:
        super().__init__()
        self.compute = compute
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype, device=device), requires_grad=False)
        self.bias = nn.Parameter(torch.empty_like(self.weight), requires_grad=False) if bias else None
        self.weights = NormWeights(self.weight, eps, kind, self.bias, weight_offset)

    def forward(self, stream: ResidualStream, scaling: Scaling | None = None) -> tuple[Tensor | Quantized, Tensor]:
        """`stream` [T, size] normalised, for a linear that wants it quantized by `scaling`; and the stream itself."""
        return self.compute.norm(stream, self.weights, scaling)
