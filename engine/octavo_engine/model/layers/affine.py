"""A bias and a factor for each number of a token's vector, also of both vectors of a sum (Zaya)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter


class Affine(nn.Module):
    """Maps x [T, size] to (x + bias) * scale."""

    def __init__(self, size: int, options: LayerOptions) -> None:
        super().__init__()
        self.scale = parameter(size, dtype=options.dtype, device=options.device)
        self.bias = parameter(size, dtype=options.dtype, device=options.device)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [T, size] with bias and factor."""
        return (x + self.bias) * self.scale

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield both vectors in a checkpoint, whose full names begin with `name`."""
        for kind, vector in (("scale", self.scale), ("bias", self.bias)):
            yield plain(f"{name}_{kind}", vector, unsharded(len(vector)))


class AffineSum(nn.Module):
    """The sum of a part's result and the residual stream, each with a bias and a factor for each number.

    The stream is kept in float32, since routers' choices depend on small differences.
    """

    def __init__(self, size: int, options: LayerOptions) -> None:
        super().__init__()
        self.result, self.stream = Affine(size, options), Affine(size, options)

    def forward(self, result: Tensor, stream: Tensor) -> Tensor:
        """Return the residual stream [T, size], float32, after a part whose result is [T, size]."""
        total: Tensor = self.result(result) + self.stream(stream.float())
        return total

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the vectors of the module `name` in a checkpoint."""
        yield from self.result.tensors(f"{name}.hidden_states")
        yield from self.stream.tensors(f"{name}.residual")
