"""The scales of weights in e4m3: whose they are, what a checkpoint calls them, how a rank gets its part."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.decoder import Decoder, DecoderLayer
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.moe import MoE
from octavo_engine.model.quantization import BLOCK
from octavo_engine.model.shard import Cut, cut_of

KV_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:[kv]_proj\.)?([kv])_scale")
"""What one number of a layer's cached keys or values is worth in e4m3; compressed-tensors' name, and modelopt's."""


def linears(decoder: Decoder) -> Iterator[tuple[tuple[str, ...], Linear]]:
    """The linear layers, each with the checkpoint's names of the projections that it consists of."""
    for index, layer in enumerate(cast("list[DecoderLayer]", decoder.layers)):
        attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
        yield tuple(f"{attention}.{name}_proj" for name in "qkv"), layer.attention.qkv
        yield (f"{attention}.o_proj",), layer.attention.output
        if isinstance(layer.mlp, MoE):
            yield (f"{mlp}.router",), layer.mlp.router
        else:
            yield (f"{mlp}.gate_proj", f"{mlp}.up_proj"), layer.mlp.gate_up
            yield (f"{mlp}.down_proj",), layer.mlp.down


def scale_parts(linear: Linear) -> tuple[Tensor, ...]:
    """The scales of each projection that the layer consists of."""
    if linear.scale is None:
        return ()
    rows = len(linear.weight) // len(linear.scale)
    return torch.split(linear.scale, [part // rows for part in linear.parts])


def computed_scales(decoder: Decoder) -> dict[str, Tensor]:
    """For each weight of the checkpoint that is quantized while it is loaded, where its scales go."""
    if decoder.spec.quantization is None or decoder.spec.quantization.scale_name is not None:
        return {}
    return {
        f"{name}.weight": scale
        for names, linear in linears(decoder)
        for name, scale in zip(names, scale_parts(linear), strict=True)
    }


def is_scale(name: str) -> bool:
    return name.endswith(("_scale", "_scale_inv"))


def read_scale(file: Any, name: str, decoder: Decoder, target: Tensor) -> None:
    """Fill the scales `target` of a weight or an activation from those of the whole model.

    A weight's one scale is written to each of its rows. Projections of the same input take the largest input scale.
    """
    values = file.get_tensor(name).float().to(target.device)
    if name.endswith(".input_scale"):
        target.copy_(torch.maximum(target, values.view(1)))
    elif values.numel() == 1:
        target.fill_(values.item())
    else:
        cut = _cut(name, decoder)
        values = values.view(len(values), -1)
        target.copy_(values.narrow(cut.dim, cut.start, target.shape[cut.dim]))


def _cut(name: str, decoder: Decoder) -> Cut:
    """Where a rank's part of a weight's scales begins: beside its part of the weight."""
    scheme = decoder.spec.quantization
    if decoder.ranks.alone or scheme is None:
        return Cut()
    cut = cut_of(f"{name.rpartition('.')[0]}.weight", decoder.whole, decoder.ranks.shard)
    if scheme.granularity == "block":
        return Cut(cut.dim, cut.start // BLOCK)
    return cut if cut.dim == 0 else Cut()


def clear_input_scales(decoder: Decoder) -> None:
    for _, linear in linears(decoder):
        if linear.input_scale is not None:
            linear.input_scale.zero_()


def read_kv_scale(path: Path, value: Tensor, name: re.Match[str], decoder: Decoder) -> None:
    """Note the scale of a layer's cached keys or values; ModelLoadError if it is no positive number."""
    layers, layer = cast("list[DecoderLayer]", decoder.layers), int(name[1])
    scale = float(value.flatten()[0]) if value.numel() == 1 else math.nan
    if layer >= len(layers) or not 0 < scale < math.inf:
        raise ModelLoadError(f"{path}: tensor {name[0]!r} is no scale of a layer's KV cache: {scale}")
    setattr(layers[layer].attention, {"k": "key_scale", "v": "value_scale"}[name[2]], scale)
