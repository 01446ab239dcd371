"""Qwen3-Next and Qwen3.5: three of four layers are Gated DeltaNet, attention is gated; experts or dense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import delta_net, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.multimodal import STORED_NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import QKVLayout, TensorNames
from octavo_engine.model.spec import (
    FeedForward,
    LayerSpec,
    ModelSpec,
    OutputGateSpec,
    QKNormSpec,
    RouterSpec,
    SharedExpertSpec,
)

_SHARED = "model.layers.{layer}.mlp.shared_expert"
_NAMES = TensorNames(
    shared_gate=f"{_SHARED}.gate_proj", shared_up=f"{_SHARED}.up_proj", shared_down=f"{_SHARED}.down_proj"
)
_LINEAR = "model.layers.{layer}.linear_attn"
_FUSED: dict[str, Any] = {
    **dict.fromkeys(("delta_query", "delta_key", "delta_value", "delta_gate"), f"{_LINEAR}.in_proj_qkvz"),
    **dict.fromkeys(("delta_strength", "delta_decay"), f"{_LINEAR}.in_proj_ba"),
}
"""Qwen3-Next's names: some heads of each projection in turn."""


def _model(fields: Fields, architecture: str, feed_forwards: list[FeedForward], names: TensorNames) -> ModelSpec:
    norm, bias = reading.rms_norm(fields, weight_offset=1.0), fields.boolean("attention_bias", False)
    qk_norm = QKNormSpec(norm)
    attention = reading.attention(
        fields,
        partial_rotary=True,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=qk_norm,
        output_gate=OutputGateSpec(with_query=True),
    )
    linear = delta_net.mixer(fields, norm_eps=norm.eps)
    layers = tuple(
        LayerSpec(mixer=attention if attends else linear, feed_forward=feed_forward, norms=reading.norms_before(norm))
        for attends, feed_forward in zip(delta_net.attends(fields, delta_net.every(fields)), feed_forwards, strict=True)
    )
    names = replace(names, qkv_layout=QKVLayout(attention.num_heads), output_gate=names.query)
    return reading.model(fields, architecture, layers, norm=norm, names=names, stored_names=STORED_NAMES)


def _experts(fields: Fields, *, renormalize: bool) -> FeedForward:
    shared = reading.mlp(fields, intermediate_size=reading.intermediate_size(fields, "shared_expert_intermediate_size"))
    router = RouterSpec(scores="softmax", renormalize=renormalize)
    return mixtures.experts(fields, router, shared=SharedExpertSpec(mlp=shared, gated=True))


def _read_next(fields: Fields) -> ModelSpec:
    step, dense = fields.integer("decoder_sparse_step", 1, 4096), frozenset(fields.integers("mlp_only_layers"))
    moe = _experts(fields, renormalize=fields.boolean("norm_topk_prob", True))
    feed_forwards = [
        reading.mlp(fields) if layer in dense or (layer + 1) % step else moe
        for layer in range(reading.num_layers(fields))
    ]
    layout = QKVLayout(fields.integer("linear_num_key_heads", 1, 1 << 12), (0, 1, 2, 3, 4, 5))
    names = replace(_NAMES, **_FUSED, delta_layout=layout)
    return _model(fields, QWEN3_NEXT.architecture, feed_forwards, names)


def _read_dense(fields: Fields) -> ModelSpec:
    return _model(fields, QWEN3_5.architecture, [reading.mlp(fields)] * reading.num_layers(fields), _NAMES)


def _read_moe(fields: Fields) -> ModelSpec:
    moe = _experts(fields, renormalize=True)
    return _model(fields, QWEN3_5_MOE.architecture, [moe] * reading.num_layers(fields), _NAMES)


_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    read=_read_next,
    defaults=_DEFAULTS
    | _EXPERTS
    | {"num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1, "intermediate_size": 5632},
)
QWEN3_5 = Family(
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    read=_read_dense,
    defaults=_DEFAULTS | {"num_key_value_heads": 4, "intermediate_size": 12288},
)
QWEN3_5_MOE = Family(
    architecture="Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    read=_read_moe,
    defaults=_DEFAULTS | _EXPERTS | {"num_experts": 256, "num_experts_per_tok": 8},
)
