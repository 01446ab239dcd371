"""Mellum 2 of JetBrains: Qwen3's mixture of experts with sliding windows, and a RoPE for each type of layers."""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec, RouterSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", True))
    feed_forward = mixtures.by_type(fields, mixtures.experts(fields, router, count="num_local_experts"), 0)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                partial_rotary=True,
                layer_type=reading.layer_type(window),
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNormSpec(norm),
                window=window,
            ),
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda _: False))
    )
    return reading.model(fields, MELLUM.architecture, layers, norm=norm)


MELLUM = Family(
    architecture="MellumForCausalLM",
    model_type="mellum",
    read=_read,
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "max_position_embeddings": 131072,
        "sliding_window": 1024,
        "intermediate_size": 7168,
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 896,
    },
)
