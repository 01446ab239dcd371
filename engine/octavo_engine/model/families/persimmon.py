"""Persimmon of Adept: a decoder with LayerNorm, QK norm, RoPE on half of each head, and a feed-forward with squared
ReLU and no gate."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec

_LAYER = "model.layers.{layer}"
_QKV = f"{_LAYER}.self_attn.query_key_value"
_NAMES = TensorNames(
    norm="model.final_layernorm",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.self_attn.dense",
    query_norm=f"{_LAYER}.self_attn.q_layernorm",
    key_norm=f"{_LAYER}.self_attn.k_layernorm",
    up=f"{_LAYER}.mlp.dense_h_to_4h",
    down=f"{_LAYER}.mlp.dense_4h_to_h",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True)
    qk_norm = QKNormSpec(norm) if fields.boolean("qk_layernorm", True) else None
    mixer = reading.attention(
        fields, grouped=False, partial_rotary=True, odd_rotary=False, qkv_bias=True, output_bias=True, qk_norm=qk_norm
    )
    layer = LayerSpec(mixer=mixer, feed_forward=reading.plain_mlp(fields, bias=True), norms=reading.norms_before(norm))
    names = replace(_NAMES, qkv_layout=QKVLayout(groups=mixer.num_heads))
    return reading.model(fields, PERSIMMON.architecture, reading.repeated(fields, layer), norm=norm, names=names)


PERSIMMON = Family(
    architecture="PersimmonForCausalLM",
    model_type="persimmon",
    read=_read,
    defaults={
        "vocab_size": 262144,
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "hidden_act": "relu2",
        "max_position_embeddings": 16384,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
