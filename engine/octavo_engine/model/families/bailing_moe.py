"""Ling and Ring of Ant Group, 1 and 2: Llama's attention, and experts beside shared ones.

Version 1 (Ling-lite) has softmax scores. Version 2 (Ling-mini, Ling-flash) has DeepSeek V3's router, QK norm, RoPE of
a part of each head, and dense first layers.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec, MoESpec, QKNormSpec, RouterSpec

_ATTENTION = "model.layers.{layer}.attention"
_QKV = f"{_ATTENTION}.query_key_value"
_NAMES = TensorNames(
    embedding="model.word_embeddings",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_ATTENTION}.dense",
    query_norm=f"{_ATTENTION}.query_layernorm",
    key_norm=f"{_ATTENTION}.key_layernorm",
    attention=_ATTENTION,
    correction_bias="model.layers.{layer}.mlp.gate.expert_bias",
)


def _read(fields: Fields, architecture: str, router: RouterSpec) -> ModelSpec:
    reading.refuse_if_true(fields, "norm_head", "norm_softmax", "multi_gate")
    norm, bias = reading.rms_norm(fields), fields.boolean("use_bias", False)
    mixer = reading.attention(
        fields,
        partial_rotary=True,
        qkv_bias=bias or fields.boolean("use_qkv_bias", False),
        output_bias=bias,
        qk_norm=QKNormSpec(norm) if fields.boolean("use_qk_norm", False) else None,
    )
    feed_forward = mixtures.after_dense(fields, _experts(fields, router, bias=bias))
    layers = mixtures.layers((mixer,) * reading.num_layers(fields), feed_forward, norm)
    return reading.model(fields, architecture, layers, norm=norm, names=_NAMES)


def _experts(fields: Fields, router: RouterSpec, *, bias: bool) -> MoESpec:
    if bias:
        raise fields.wrong("use_bias", True, "is not supported for experts")
    width = "moe_shared_expert_intermediate_size"
    width = width if fields.has(width) else "moe_intermediate_size"
    return mixtures.experts(fields, router, shared=mixtures.shared(fields, "num_shared_experts", width))


def _read_v1(fields: Fields) -> ModelSpec:
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", False), in_float32=True)
    return _read(fields, BAILING_MOE.architecture, router)


def _read_v2(fields: Fields) -> ModelSpec:
    if fields.text("score_function") != "sigmoid":
        raise fields.wrong("score_function", fields.values["score_function"], "is not supported, only sigmoid")
    for name in ("norm_topk_prob", "moe_router_enable_expert_bias"):
        if not fields.boolean(name, True):
            raise fields.wrong(name, False, "is not supported")
    return _read(fields, BAILING_MOE_V2.architecture, mixtures.sigmoid_router(fields))


_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 16384,
    "num_experts": 16,
    "num_shared_experts": 0,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 0,
    "eos_token_id": 126081,
}
BAILING_MOE = Family(architecture="BailingMoeForCausalLM", model_type="bailing_moe", read=_read_v1, defaults=_DEFAULTS)
BAILING_MOE_V2 = Family(
    architecture="BailingMoeV2ForCausalLM",
    model_type="bailing_moe_v2",
    read=_read_v2,
    defaults={
        **_DEFAULTS,
        "rope_theta": 600000.0,
        "max_position_embeddings": 32768,
        "num_experts": 256,
        "num_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 1.0,
        "score_function": "sigmoid",
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "eos_token_id": 156892,
    },
)
