"""Runs all layers of a decoder in a step: by default one layer after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.cpu.layers import LayerAdapters, LayerWeights
from octavo_engine.model.layers.residual import LayerStream, ShortcutStream, summed


class Layer(Protocol):
    """The part of a decoder layer that runners of layers use."""

    def __call__(self, stream: LayerStream, rope: Rope | None, context: StepContext) -> LayerStream:
        """Return the residual stream [T, hidden] after this layer."""

    def weights(self) -> LayerWeights | None:
        """Return the layer's weights for kernels that compute whole layers; None: they do not support some weight. Only
        called for layers of a shape that such kernels support."""

    def adapters(self) -> LayerAdapters | None:
        """Return the adapters of its linears, for the same kernels; None: no adapters are served."""


Ropes = Sequence[Rope | None]
"""The angles of the step's tokens for each layer; None: the layer does not rotate."""
LayerRunner = Callable[[Sequence[Layer], Tensor, Ropes, StepContext], Tensor]
"""A function that runs x [T, hidden] through all layers; it may overwrite x."""


def one_by_one(layers: Sequence[Layer], x: Tensor, ropes: Ropes, context: StepContext) -> Tensor:
    """Run x [T, hidden] through one layer after another."""
    stream: LayerStream = x
    for layer, rope in zip(layers, ropes, strict=True):
        stream = layer(stream, rope, context)
    if isinstance(stream, ShortcutStream):
        raise ValueError("the last layer has a shortcut, whose result no layer adds")
    return summed(stream)
