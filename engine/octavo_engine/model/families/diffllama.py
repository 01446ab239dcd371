"""DiffLlama: Llama whose attention is the difference of two softmaxes (Differential Transformer, arXiv 2410.05258)."""

from __future__ import annotations

import math
from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import DifferentialAttentionSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layers = tuple(
        LayerSpec(
            mixer=replace(_attention(fields), share=0.8 - 0.6 * math.exp(-0.3 * layer)),
            feed_forward=reading.mlp(fields),
            norms=reading.norms_before(norm),
        )
        for layer in range(reading.num_layers(fields))
    )
    return reading.model(fields, DIFFLLAMA.architecture, layers, norm=norm)


def _attention(fields: Fields) -> DifferentialAttentionSpec:
    """Return the attention of every layer but for its `share`, which depends on the layer's number."""
    heads = reading.attention(fields)
    if heads.num_kv_heads % 2:
        raise fields.wrong("num_key_value_heads", heads.num_kv_heads, "is odd, and differential attention pairs heads")
    return DifferentialAttentionSpec(
        num_heads=heads.num_heads // 2,
        num_kv_heads=heads.num_kv_heads // 2,
        size=heads.head_dim,
        scale=heads.scale,
        rope=heads.rope,
        share=0.0,
        eps=reading.rms_norm(fields).eps,
        bias=fields.boolean("attention_bias", False),
    )


DIFFLLAMA = Family(
    architecture="DiffLlamaForCausalLM",
    model_type="diffllama",
    read=_read,
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "eos_token_id": 2,
    },
)
