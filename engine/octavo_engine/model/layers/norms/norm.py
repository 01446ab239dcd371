"""Normalisation of the residual stream, or of what a part of a layer adds to it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import NormSpec


class Norm(nn.Module):
    """Root mean square (arXiv 1910.07467) or layer normalisation (arXiv 1607.06450) of [T, size]."""

    def __init__(self, size: int | tuple[int, int], spec: NormSpec, options: LayerOptions) -> None:
        """`size`: of the last dimension; or heads and the size of each, which have weights of their own."""
        super().__init__()
        self.compute = options.compute
        shape = (size,) if isinstance(size, int) else size
        self.weight: Tensor
        if spec.weight:
            self.weight = parameter(*shape, dtype=options.dtype, device=options.device)
        else:
            ones = torch.ones(shape, dtype=options.dtype, device=options.device)
            self.register_buffer("weight", ones, persistent=False)
        self.bias = parameter(*shape, dtype=options.dtype, device=options.device) if spec.bias else None
        self.weights = NormWeights(self.weight, spec.eps, spec.kind, self.bias, spec.weight_offset)

    def forward(self, stream: ResidualStream, scaling: Scaling | None = None) -> tuple[Tensor | Quantized, Tensor]:
        """Return `stream` [T, size] normalised, and quantized if `scaling` says so; and the stream itself."""
        return self.compute.norm(stream, self.weights, scaling)

    def tensors(self, name: str, rows: Span | None = None, order: Tensor | None = None) -> Iterator[CheckpointTensor]:
        """Yield the vector in a checkpoint, of which a rank loads `rows`, or all.

        `order`: which of the rank's numbers each stored one is.
        """
        for kind, own in (("weight", self.weight), ("bias", self.bias)):
            if isinstance(own, nn.Parameter):
                yield plain(f"{name}.{kind}", own.view(-1), rows or unsharded(own.numel()), order=order)
