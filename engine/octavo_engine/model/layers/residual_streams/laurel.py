"""A learned augmented residual beside a layer's mixer (LAuReL, arXiv 2411.07501). Every rank computes all of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.spec import LaurelSpec

_FLOAT32_BYTES = 4


class Laurel(nn.Module):
    """The mixer's input and a low-rank projection of it, added to the stream, whose sum is then scaled down."""

    def __init__(self, spec: LaurelSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        hidden, rank = unsharded(hidden_size), unsharded(spec.rank)
        self.left = Linear(hidden, (rank,), bias=False, options=options)
        self.right = Linear(rank, (hidden,), bias=False, options=options)
        self.norm = Norm(hidden_size, spec.norm, options)

    def forward(self, stream: Tensor, read: Tensor) -> Tensor:
        """Return the stream [T, hidden] with the residual of `read`, which is the mixer's input, added and scaled."""
        return (stream + (read + cast("Tensor", self.norm(self.right(self.left(read)))[0]))) / math.sqrt(2)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        yield from self.left.tensors(names.of_layer("laurel_left", self.layer))
        yield from self.right.tensors(names.of_layer("laurel_right", self.layer))
        yield from self.norm.tensors(names.of_layer("laurel_norm", self.layer))

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this module, the mixer's input included."""
        hidden, size = self.left.columns.size, self.options.dtype.itemsize
        return (5 * hidden + self.spec.rank) * size + 3 * hidden * _FLOAT32_BYTES
