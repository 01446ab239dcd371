"""Laguna of Poolside: Llama with QK norm, output gates, sliding windows and experts.

Each layer may have its own number of heads, and each type of layers has a RoPE of its own. The router has sigmoid
scores and a correction bias.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
    RouterSpec,
    SharedExpertSpec,
)

_LAYER = "model.layers.{layer}"
_NAMES = TensorNames(
    modules=((".mlp.shared_experts.", ".mlp.shared_expert."), (".mlp.gate.e_score", ".mlp.experts.e_score")),
    output_gate=f"{_LAYER}.self_attn.g_proj",
    correction_bias=f"{_LAYER}.mlp.experts.e_score_correction_bias",
    shared_gate=f"{_LAYER}.mlp.shared_expert.gate_proj",
    shared_up=f"{_LAYER}.mlp.shared_expert.up_proj",
    shared_down=f"{_LAYER}.mlp.shared_expert.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, feed_forward = reading.rms_norm(fields), mixtures.by_type(fields, _experts(fields), 1)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, layer, window),
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda _: False))
    )
    return reading.model(fields, LAGUNA.architecture, layers, norm=norm, names=_NAMES)


def _mixer(fields: Fields, norm: NormSpec, layer: int, window: int | None) -> AttentionSpec:
    heads, bias, gating = fields.integers("num_attention_heads_per_layer"), False, fields.values["gating"]
    if heads and len(heads) != reading.num_layers(fields):
        raise fields.wrong("num_attention_heads_per_layer", heads, f"does not name {reading.num_layers(fields)} layers")
    if gating not in (True, False, "per-head", "per-element"):  # false is per-element, as in transformers
        raise fields.wrong("gating", gating, "is not supported, only true, false, per-head and per-element")
    bias = fields.boolean("attention_bias", False)
    own = Fields(fields.origin, {**fields.values, **({"num_attention_heads": heads[layer]} if heads else {})})
    return reading.attention(
        own,
        partial_rotary=True,
        layer_type=reading.layer_type(window),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec("softplus", per_head=gating in (True, "per-head")),
        window=window,
    )


def _experts(fields: Fields) -> MoESpec:
    reading.refuse_if_true(fields, "moe_apply_router_weight_on_input")
    cap = fields.number("moe_router_logit_softcapping", 0, 1e6, default=0.0)
    router = RouterSpec(
        scores="sigmoid",
        correction_bias=True,
        renormalize=True,
        scale=reading.scale(fields, "moe_routed_scaling_factor"),
        softcap=cap or None,
    )
    size = reading.intermediate_size(fields, "shared_expert_intermediate_size")
    return mixtures.experts(fields, router, shared=SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=size)))


LAGUNA = Family(
    architecture="LagunaForCausalLM",
    model_type="laguna",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "gating": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "intermediate_size": 8192,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "moe_routed_scaling_factor": 1.0,
    },
)
