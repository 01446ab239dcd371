"""Vectors of each token for each layer, beside the residual stream (Gemma 3n and 4). Every rank computes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.embeddings.embedding import Embedding
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.spec import PerLayerInputSpec

_FLOAT32_BYTES = 4


class PerLayerEmbedding(nn.Module):
    """The per-layer inputs of all layers, computed once in a step."""

    def __init__(self, spec: PerLayerInputSpec, hidden_size: int, num_layers: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.num_layers, self.options, self.scale = spec, num_layers, options, hidden_size**-0.5
        size = num_layers * spec.size
        name, scale = options.names.per_layer_embedding, spec.size**0.5
        self.embedding = Embedding(name, spec.vocab_size, size, scale, options) if spec.vocab_size else None
        self.projection = Linear(unsharded(hidden_size), (unsharded(size),), bias=False, options=options)
        self.norm = Norm(spec.size, spec.norm, options)

    def forward(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """Return all layers' inputs [T, layers, size] of tokens [T] and their embeddings [T, hidden]."""
        projected = (self.projection(x) * self.scale).view(len(x) * self.num_layers, self.spec.size)
        normed = cast("Tensor", self.norm(projected)[0]).view(len(x), self.num_layers, self.spec.size)
        if self.embedding is None:
            return normed
        embedded: Tensor = self.embedding(token_ids.where(token_ids < self.spec.vocab_size, 0))
        return (normed + embedded.view_as(normed)) * 2**-0.5

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        if self.embedding is not None:
            yield from self.embedding.stored()
        yield from self.projection.tensors(names.per_layer_projection)
        yield from self.norm.tensors(names.per_layer_projection_norm)

    def step_bytes(self) -> int:
        """Return an upper bound of what one token takes in it, its result included, which lives through all layers."""
        size = self.num_layers * self.spec.size
        return size * (4 * self.options.dtype.itemsize + 3 * _FLOAT32_BYTES)


class PerLayerInput(nn.Module):
    """An addend of the residual stream after both parts of a layer: norm(W (act(gate(x)) * input))."""

    def __init__(self, spec: PerLayerInputSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        hidden, size = unsharded(hidden_size), unsharded(spec.size)
        self.gate = Linear(hidden, (size,), bias=False, options=options)
        self.output = Linear(size, (hidden,), bias=False, options=options)
        self.norm = Norm(hidden_size, spec.norm, options)

    def forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return x [T, hidden] with this layer's addend, computed from all layers' inputs [T, layers, size]."""
        return x + self.addend(x, inputs)

    def addend(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Return this layer's addend, [T, hidden]."""
        gated = self.options.compute.activate(self.gate(x), self.spec.activation) * inputs[:, self.layer]
        return cast("Tensor", self.norm(self.output(gated))[0])

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        yield from self.gate.tensors(names.of_layer("per_layer_gate", self.layer))
        yield from self.output.tensors(names.of_layer("per_layer_output", self.layer))
        yield from self.norm.tensors(names.of_layer("per_layer_norm", self.layer))

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this module during a step."""
        hidden, size = self.gate.columns.size, self.options.dtype.itemsize
        return (3 * self.spec.size + 3 * hidden) * size + 3 * hidden * _FLOAT32_BYTES
