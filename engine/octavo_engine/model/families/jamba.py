"""Jamba of AI21 (arXiv 2403.19887): Mamba in most layers, and attention without RoPE in the others.

By default every second layer has experts in place of a dense feed-forward.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import bamba, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import STATE_SPACE_DEFAULTS, mamba
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, RouterSpec

_FEED_FORWARD = "model.layers.{layer}.feed_forward"
_NAMES = replace(
    bamba.NAMES,
    router=f"{_FEED_FORWARD}.router",
    expert_gate=f"{_FEED_FORWARD}.experts.{{expert}}.gate_proj",
    expert_up=f"{_FEED_FORWARD}.experts.{{expert}}.up_proj",
    expert_down=f"{_FEED_FORWARD}.experts.{{expert}}.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    attention, mixer = reading.attention(fields, rope=None), mamba(fields, norm)

    def layer(index: int) -> LayerSpec:
        feed_forward = experts if experts is not None and _every(fields, "expert_layer", index) else mlp
        own = attention if _every(fields, "attn_layer", index) else mixer
        return LayerSpec(mixer=own, feed_forward=feed_forward, norms=reading.norms_before(norm))

    mlp, several = reading.mlp(fields), fields.integer("num_experts", 1, 1 << 16) > 1
    experts = mixtures.experts(fields, RouterSpec(scores="softmax"), size="intermediate_size") if several else None
    layers = tuple(map(layer, range(reading.num_layers(fields))))
    return reading.model(fields, JAMBA.architecture, layers, norm=norm, names=_NAMES)


def _every(fields: Fields, name: str, layer: int) -> bool:
    """Return True if a layer is one of those that a period and an offset select."""
    period, offset = fields.integer(f"{name}_period", 1, 4096), fields.integer(f"{name}_offset", 0, 4096)
    return layer % period == offset


JAMBA = Family(
    architecture="JambaForCausalLM",
    model_type="jamba",
    read=_read,
    defaults={
        **STATE_SPACE_DEFAULTS,
        "hidden_act": "silu",
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "num_experts": 16,
        "num_experts_per_tok": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "eos_token_id": 2,
    },
)
