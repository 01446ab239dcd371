"""A.X K1 of SK Telecom: DeepSeek V3 with a norm after the experts.

Layers with a dense feed-forward have no such norm.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families.deepseek import DEFAULTS, read_by_type
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.moe_layer_freq import with_mlp_layer_types
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec, MoESpec


def _read_axk1(fields: Fields) -> ModelSpec:
    spec = read_by_type(with_mlp_layer_types(fields), AXK1.architecture)
    layers = tuple(
        replace(layer, norms=replace(layer.norms, after_feed_forward=spec.norm))
        if isinstance(layer.feed_forward, MoESpec)
        else layer
        for layer in spec.layers
    )
    names = replace(
        spec.names,
        modules=((".mlp.post_mlp_layernorm.", ".post_mlp_layernorm."),),
        after_feed_forward="model.layers.{layer}.post_mlp_layernorm",
    )
    return replace(spec, layers=layers, names=names)


AXK1 = Family(
    architecture="AXK1ForCausalLM",
    model_type="axk1",
    read=_read_axk1,
    defaults={
        **DEFAULTS,
        "max_position_embeddings": 32768,
        "intermediate_size": 18432,
        "n_routed_experts": 192,
        "first_k_dense_replace": 1,
        "eos_token_id": 163691,
    },
)
