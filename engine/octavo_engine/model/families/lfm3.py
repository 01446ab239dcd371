"""LFM3 of Liquid AI: LFM2 with a sliding window in some layers, and an output gate for each head.

Norms stand after mixer and feed-forward besides those before.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import lfm2, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
)

_LAYER = "model.layers.{layer}"
_NAMES = replace(
    lfm2.NAMES,
    modules=((".self_attn.g_proj", ".self_attn.gate_proj"),),
    after_mixer=f"{_LAYER}.post_operator_norm",
    after_feed_forward=f"{_LAYER}.post_ffn_norm",
    query_norm=f"{_LAYER}.self_attn.q_norm",
    key_norm=f"{_LAYER}.self_attn.k_norm",
    output=f"{_LAYER}.self_attn.o_proj",
)
_KINDS = {"conv", "full_attention", "sliding_attention"}


def _read(fields: Fields) -> ModelSpec:
    norm, mlp = lfm2.norm(fields), MLPSpec(intermediate_size=reading.intermediate_size(fields))
    after = norm if fields.boolean("use_sandwich_norm", True) else None
    norms = LayerNorms(before_mixer=norm, after_mixer=after, before_feed_forward=norm, after_feed_forward=after)
    conv = lfm2.short_conv(fields)
    layers = tuple(
        LayerSpec(mixer=conv if kind == "conv" else _attention(fields, kind, norm), feed_forward=mlp, norms=norms)
        for kind in reading.layer_types(fields, _KINDS, _kind)
    )
    return reading.model(fields, LFM3.architecture, layers, norm=norm, names=_NAMES)


def _kind(layer: int) -> str:
    """Return the default kind of a layer, for files that do not state it."""
    if layer % 4 == 2:
        return "full_attention"
    return "sliding_attention" if layer and layer % 4 == 0 else "conv"


def _attention(fields: Fields, kind: str, norm: NormSpec) -> AttentionSpec:
    bias, gated = fields.boolean("attention_bias", False), fields.boolean("use_attention_gate", True)
    return reading.attention(
        fields,
        layer_type=kind,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec(per_head=True) if gated else None,
        window=fields.integer("sliding_window", 1, 1 << 30) if kind == "sliding_attention" else None,
    )


LFM3 = Family(
    architecture="Lfm3ForCausalLM",
    model_type="lfm3",
    read=_read,
    aliases={"rms_norm_eps": "norm_eps"},
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "norm_eps": 1e-5,
        "max_position_embeddings": 128_000,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
        },
        "conv_L_cache": 7,
        "sliding_window": 256,
        "tie_word_embeddings": True,
        "vocab_size": 128_000,
        "eos_token_id": 124_900,
    },
)
