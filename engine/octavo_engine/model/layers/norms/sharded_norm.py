"""RMSNorm over a dimension that ranks divide among themselves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, plain
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter

_FLOAT32_BYTES = 4


class ShardedNorm(nn.Module):
    """Root mean square normalisation (arXiv 1910.07467) over all ranks' parts of the last dimension."""

    def __init__(self, size: Span, eps: float, options: LayerOptions) -> None:
        super().__init__()
        self.size, self.eps, self.options = size, eps, options
        self.weight = parameter(size.size, dtype=options.dtype, device=options.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, size], this rank's part of the dimension, normalised."""
        wide = x.float()
        squares = self.options.ranks.all_reduce(wide.square().sum(-1, keepdim=True))
        return self.weight * (wide * torch.rsqrt(squares / self.size.total + self.eps)).to(x.dtype)

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield plain(f"{name}.weight", self.weight, self.size)

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this module during a step, without its input."""
        return self.size.size * (3 * _FLOAT32_BYTES + 2 * self.options.dtype.itemsize)
