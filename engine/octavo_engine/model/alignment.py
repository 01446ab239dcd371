"""Checks that a quantization scheme fits a model's projections, the ranks' parts of them, and the device."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch

from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.spec import LayerSpec, ModelSpec
from octavo_engine.model.tensor_parallel.collectives import Collectives
from octavo_engine.model.tensor_parallel.shard import Shard


def check_alignment(spec: ModelSpec, ranks: int) -> None:
    """Raise an OctavoError unless each rank's part of each projection consists of complete blocks.

    Ranks may have parts of different sizes.
    """
    wrong = _misaligned(spec, ranks)
    if not wrong:
        return
    alignment = max(wrong.values())
    why = f"{', '.join(wrong)} is not a multiple of {alignment}, the rows or columns of a block of stored weights"
    if ranks == 1:
        raise ModelLoadError(f"the model's {why}")
    possible = ", ".join(str(size) for size in range(1, ranks) if not _misaligned(spec, size))
    advice = f"sizes that work: {possible}" if possible else "no smaller size works either"
    raise ConfigurationError(f"--tensor-parallel-size {ranks}: a rank's {why}; {advice}")


def check_experts_stay(decoder: Decoder) -> None:
    """Raise ConfigurationError if weights are to be quantized now, and experts would not stay so on the device."""
    quantization = decoder.spec.quantization
    if (
        quantization is None
        or not quantization.online
        or not any(each.dequantized_from() for each in decoder.mixtures())
    ):
        return
    name, dtype = quantization.name, str(decoder.dtype).removeprefix("torch.")
    raise ConfigurationError(
        f"--quantization {name}: the model's experts are not computed in {name} on this device, and would take the "
        f"memory of {dtype}; omit the flag{', or take int8 or int4' if name == 'fp8' else ''}"
    )


def _with_own_weights(layer: LayerSpec) -> LayerSpec:
    """Return `layer` with weights of its own, which have the sizes of those that it shares with another one."""
    block = layer.shared_block
    own = None if block is None else replace(block, weights_of_layer=None)
    return replace(layer, weights_of_layer=None, shared_block=own)


def _misaligned(spec: ModelSpec, ranks: int) -> dict[str, int]:
    """Return the sizes that ranks cannot have, as messages name them, each with the number it must be a multiple of.

    Of layers with the same spec one is checked, unless layers are stored in different ways, by name.
    """
    by_name = spec.quantization is not None and bool(spec.quantization.rules)
    one_of_each = spec if by_name else replace(spec, layers=tuple(dict.fromkeys(map(_with_own_weights, spec.layers))))
    for rank in range(ranks):
        shard = Collectives(Shard(rank, ranks))
        decoder = Decoder(one_of_each, dtype=torch.float32, device=torch.device("meta"), ranks=shard)
        parts: list[Linear | MoE] = [*decoder.linears(), *decoder.mixtures()]
        found = chain(*(part.misaligned() for part in parts))
        if wrong := {f"{span.what} ({span.size})": alignment for span, alignment in found}:
            return wrong
    return {}
