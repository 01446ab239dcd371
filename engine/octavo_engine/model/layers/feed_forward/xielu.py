"""xIELU, an activation function with learnt parameters (arXiv 2411.13010)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter


class XIELU(nn.Module):
    """xIELU: a parabola for positive x, an exponential for the others; both slopes are learned."""

    beta: Tensor
    eps: Tensor

    def __init__(self, options: LayerOptions) -> None:
        super().__init__()
        self.alpha_p = parameter(1, dtype=options.dtype, device=options.device)
        self.alpha_n = parameter(1, dtype=options.dtype, device=options.device)
        for name in ("beta", "eps"):  # checkpoints state them, though nothing is learned
            self.register_buffer(name, torch.zeros(1, dtype=options.dtype, device=options.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to x [T, inner], elementwise."""
        alpha_p, alpha_n = F.softplus(self.alpha_p), self.beta + F.softplus(self.alpha_n)
        negative = (torch.expm1(torch.minimum(x, self.eps)) - x) * alpha_n + self.beta * x
        return torch.where(x > 0, alpha_p * x * x + self.beta * x, negative)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield plain(f"{name}.alpha_p", self.alpha_p, unsharded(1))
        yield plain(f"{name}.alpha_n", self.alpha_n, unsharded(1))
        yield CheckpointTensor(name=f"{name}.beta", shape=(), pieces=(Piece(self.beta),), squeezed=True)
        yield CheckpointTensor(name=f"{name}.eps", shape=(), pieces=(Piece(self.eps),), squeezed=True)
