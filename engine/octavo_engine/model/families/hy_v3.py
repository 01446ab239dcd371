"""Hy3 of Tencent: Llama with QK norm, and experts with DeepSeek V3's router in all but the first layer."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec, QKNormSpec, RouterSpec

_MLP = "model.layers.{layer}.mlp"
_NAMES = TensorNames(
    modules=(("shared_experts", "shared_mlp"), ("mlp.gate", "mlp.router.gate"), ("e_score_correction", "expert")),
    router=f"{_MLP}.router.gate",
    correction_bias=f"{_MLP}.expert_bias",
    shared_gate=f"{_MLP}.shared_mlp.gate_proj",
    shared_up=f"{_MLP}.shared_mlp.up_proj",
    shared_down=f"{_MLP}.shared_mlp.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    biases: dict[str, Any] = dict.fromkeys(("bias", "output_bias"), fields.boolean("mlp_bias", False))
    router = RouterSpec(
        scores="sigmoid",
        correction_bias=True,
        renormalize=True,
        sum_offset=1e-20,
        scale=reading.scale(fields, "router_scaling_factor"),
        in_float32=True,
    )
    moe = mixtures.experts(fields, router, shared=mixtures.shared(fields, "num_shared_experts", **biases))
    feed_forward = mixtures.by_type(fields, moe, 1, **biases)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm))
    layers = mixtures.layers((mixer,) * reading.num_layers(fields), feed_forward, norm)
    return reading.model(fields, HY_V3.architecture, layers, norm=norm, names=_NAMES)


HY_V3 = Family(
    architecture="HYV3ForCausalLM",
    model_type="hy_v3",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 11158840.0,
        "max_position_embeddings": 131072,
        "intermediate_size": 13312,
        "num_experts": 192,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826,
    },
)
