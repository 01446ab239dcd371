"""The layers of a decoder as one call of the C kernels, where those compute everything that is in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.kernels.cpu.layers import CPULayers, LayerTensors
from octavo_engine.kernels.cpu.library import CPUKernels

if TYPE_CHECKING:
    from octavo_engine.model.decoder import DecoderLayer
    from octavo_engine.model.layers.mlp import GatedMLP


def can_fuse(layers: Sequence[DecoderLayer], x: Tensor, attention: AttentionContext) -> bool:
    """Whether the kernels compute all of `layers` for x [T, hidden]."""
    from octavo_engine.model.layers.mlp import GatedMLP  # which is made of what this module is for

    mlp = layers[0].mlp
    if not isinstance(mlp, GatedMLP) or not isinstance(attention.backend, CPUAttention):
        return False
    ours = mlp.ranks.alone and layers[0].attention.norms is None and mlp.gate_up.scale is None
    return ours and x.dtype == torch.bfloat16 and len(x) > 0 and mlp.activation == "silu"


class FusedLayers:
    """The layers and the caches that one decoder runs with."""

    def __init__(self, kernels: CPUKernels, layers: Sequence[DecoderLayer], attention: AttentionContext) -> None:
        self._caches = attention.caches
        tensors = [_tensors(layer, attention) for layer in layers]
        self._layers = CPULayers(kernels, tensors, attention.group_of_layer, layers[0].mlp_norm.eps)

    def fits(self, attention: AttentionContext) -> bool:
        """Whether it is still these caches that are used."""
        return self._caches is attention.caches

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, attention: AttentionContext) -> Tensor:
        """x [T, hidden] through all layers, in place."""
        return self._layers(x, cos, sin, attention.metadata)


def _tensors(layer: DecoderLayer, attention: AttentionContext) -> LayerTensors:
    cache, mlp, linears = attention.caches[layer.attention.layer], cast("GatedMLP", layer.mlp), layer.attention
    return LayerTensors(
        attention_norm=layer.attention_norm.weight,
        qkv=linears.qkv.weight,
        qkv_bias=linears.qkv.bias,
        output=linears.output.weight,
        output_bias=linears.output.bias,
        mlp_norm=layer.mlp_norm.weight,
        gate_up=mlp.gate_up.weight,
        gate_up_bias=mlp.gate_up.bias,
        down=mlp.down.weight,
        down_bias=mlp.down.bias,
        keys=cache.key,
        values=cache.value,
    )
