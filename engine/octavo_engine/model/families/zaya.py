"""Zaya of Zyphra: Compressed Convolutional Attention, and experts whose routers hand a latent from layer to layer.

One further expert can be chosen, which adds nothing. Embeddings and sums have learnt biases and factors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    ConvolvedAttentionSpec,
    HeadSpec,
    LatentRouterSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    QKConvSpec,
    RouterSpec,
)

_QKV, _MLP = "model.layers.{layer}.self_attn.qkv_proj", "model.layers.{layer}.mlp"
_NAMES = TensorNames(
    query=f"{_QKV}.q_proj",
    key=f"{_QKV}.k_proj",
    value=f"{_QKV}.v_proj_current",
    expert_gate=f"{_MLP}.experts.gate_up_proj",
    expert_up=f"{_MLP}.experts.gate_up_proj",
    expert_down=f"{_MLP}.experts.down_proj",
    correction_bias=f"{_MLP}.gate.balancing_biases",
)
_TYPES = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
_ROPE = {
    kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
    for kind, theta in {"hybrid": 5e6, "hybrid_sliding": 1e4}.items()
}


def _read(fields: Fields) -> ModelSpec:
    fields, norm = _in_common_terms(fields), reading.rms_norm(fields)
    windows = reading.windows(fields, default=lambda _: False)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, window),
            feed_forward=_experts(fields, norm, carried=index > 0),
            norms=reading.norms_before(norm),
            affine_sums=True,
        )
        for index, window in enumerate(windows)
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), bias=fields.boolean("lm_head_bias", False))
    own: dict[str, Any] = {"norm": norm, "head": head, "affine_embeddings": True, "names": _NAMES}
    return reading.model(fields, ZAYA.architecture, layers, **own)


def _in_common_terms(fields: Fields) -> Fields:
    """Return the fields with the names of types of layers that most families have."""
    types = reading.layer_types(fields, set(_TYPES), lambda _: "hybrid")
    rope = fields.mapping("rope_parameters") or fields
    ropes = {_TYPES[kind]: rope.values.get(kind) for kind in _TYPES if kind in rope.values}
    if missing := set(types) - set(rope.values):
        raise fields.wrong("rope_parameters", dict(rope.values), f"does not have {' and '.join(sorted(missing))}")
    common = {"layer_types": [_TYPES[kind] for kind in types], "rope_parameters": ropes}
    return replace(fields, values={**fields.values, **common})


def _mixer(fields: Fields, window: int | None) -> ConvolvedAttentionSpec:
    bias, kind = fields.boolean("attention_bias", False), reading.layer_type(window)
    rotated: dict[str, Any] = {"partial_rotary": True, "odd_rotary": False, "layer_type": kind}
    attention = reading.attention(fields, qkv_bias=bias, output_bias=bias, window=window, **rotated)
    first, second = (fields.integer(name, 1, 64) for name in ("cca_time0", "cca_time1"))
    values = attention.num_kv_heads * attention.head_dim
    if first + second == 2 or values % 2:
        raise fields.wrong("cca_time0", first, f"with cca_time1 {second} and {values} values is not supported")
    conv = QKConvSpec(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_dim=attention.head_dim,
        widths=(first, second),
        delayed=values // 2,
    )
    return ConvolvedAttentionSpec(attention=attention, state_mixer=conv)


def _experts(fields: Fields, norm: NormSpec, *, carried: bool) -> MoESpec:
    latent = LatentRouterSpec(size=fields.integer("router_hidden_size", 1, 1 << 20), norm=norm, carried=carried)
    router = RouterSpec(scores="softmax", latent=latent, correction_bias=True)
    return mixtures.experts(fields, router, zero_experts=1, skipped=True)


ZAYA = Family(
    architecture="ZayaForCausalLM",
    model_type="zaya",
    read=_read,
    defaults={
        "vocab_size": 262272,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": _ROPE,
        "moe_intermediate_size": 2048,
        "num_experts": 16,
        "num_experts_per_tok": 1,
        "router_hidden_size": 256,
        "cca_time0": 2,
        "cca_time1": 2,
        "eos_token_id": 106,
    },
)
