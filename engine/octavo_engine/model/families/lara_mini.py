"""Lara 4 Mini: Gated DeltaNet, Qwen3's attention with windows or, without RoPE, of all tokens, and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import delta_net, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.qwen_layers import NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, Mixer, ModelSpec, QKNormSpec, RouterSpec, SharedExpertSpec

_PERIOD = ("linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention")
_PROJECTIONS = (f"delta_{part}" for part in ("query", "key", "value", "gate", "strength", "decay"))
_FUSED: dict[str, Any] = dict.fromkeys(_PROJECTIONS, "model.layers.{layer}.linear_attn.in_proj")
_NAMES = replace(NAMES, **_FUSED, delta_norm="model.layers.{layer}.linear_attn.out_norm")


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    rotating = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm))
    mixers: dict[str, Mixer] = {
        "linear_attention": delta_net.mixer(fields, norm_eps=norm.eps),
        "sliding_attention": replace(rotating, window=reading.window(fields)),
        "full_attention": reading.without_rope(rotating),
    }
    kinds = reading.layer_types(fields, set(mixers), default=lambda layer: _PERIOD[layer % len(_PERIOD)])
    width = reading.intermediate_size(fields, "shared_expert_intermediate_size")
    beside = SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=width))
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", True), in_float32=True)
    experts = mixtures.experts(fields, router, shared=beside)
    layers = tuple(LayerSpec(mixer=mixers[k], feed_forward=experts, norms=reading.norms_before(norm)) for k in kinds)
    return reading.model(fields, LARA_MINI.architecture, layers, norm=norm, names=_NAMES)


LARA_MINI = Family(
    architecture="LaraMiniForCausalLM",
    model_type="lara_mini",
    read=_read,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 512,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 8,
        "linear_value_head_dim": 128,
        "linear_num_value_heads": 16,
        "num_experts": 128,
        "num_experts_per_tok": 4,
        **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 512),
        "tie_word_embeddings": True,
        "eos_token_id": 151643,
    },
)
