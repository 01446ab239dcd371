"""The parts that all forms of attention over the backend's paged cache have in common."""

from __future__ import annotations

from torch import nn

from octavo_engine.kernels.fp8_activations import Scaling
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions


class CachedAttention(nn.Module):
    """A mixer whose keys and values are kept in the cache of the attention backend.

    A subclass whose input is read by more than the one projection `qkv` overrides `input_scaling`.
    """

    qkv: Linear

    def __init__(self, layer: int, options: LayerOptions) -> None:
        super().__init__()
        self.layer, self.options = layer, options
        self.key_scale = self.value_scale = 1.0
        """The scales of cached keys and values: the value of one unit in the cache (of e4m3, if the cache is in it)."""

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized; None: not at all."""
        return self.qkv.input_scaling

    def sequence_bytes(self) -> int:
        """Return 0: a sequence needs no memory in this layer besides its cached tokens."""
        return 0
