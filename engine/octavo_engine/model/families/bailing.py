"""Ling 3 of Ant Group (BailingHybrid): linear attention in most layers, latent attention in the others, and experts.

The last of every `layer_group_size` layers has DeepSeek's latent attention with a gate for each head's result; the
others have Kimi Delta Attention. The first layers are dense; the others have DeepSeek V3's experts.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.delta_net import attends
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.kimi_linear import KIMI_LINEAR
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import KimiDeltaAttentionSpec, LayerSpec, ModelSpec, OutputGateSpec

_ATTENTION = "model.layers.{layer}.attention"
_NAMES = TensorNames(
    modules=(
        (".self_attn.o_proj", ".attention.dense"),
        (".self_attn.forget_gate.", ".attention."),
        (".self_attn.", ".attention."),
        ("model.embed_tokens.", "model.word_embeddings."),
        (".gate.e_score_correction_bias", ".gate.expert_bias"),
    ),
    embedding="model.word_embeddings",
    attention=_ATTENTION,
    query=f"{_ATTENTION}.q_proj",
    key=f"{_ATTENTION}.k_proj",
    value=f"{_ATTENTION}.v_proj",
    output=f"{_ATTENTION}.dense",
    output_gate=f"{_ATTENTION}.g_proj",
    query_down=f"{_ATTENTION}.q_a_proj",
    query_latent_norm=f"{_ATTENTION}.q_a_layernorm",
    query_up=f"{_ATTENTION}.q_b_proj",
    latent=f"{_ATTENTION}.kv_a_proj_with_mqa",
    latent_norm=f"{_ATTENTION}.kv_a_layernorm",
    latent_up=f"{_ATTENTION}.kv_b_proj",
    correction_bias="model.layers.{layer}.mlp.gate.expert_bias",
)


def _read(fields: Fields) -> ModelSpec:
    norm, period = reading.rms_norm(fields), fields.integer("layer_group_size", 1, 4096)
    router, beside = mixtures.sigmoid_router(fields), mixtures.shared(fields, "n_shared_experts")
    experts = mixtures.experts(fields, router, count="num_local_experts", shared=beside)
    feed_forward = mixtures.by_type(fields, experts, fields.integer("first_k_dense_replace", 0, 4096))
    linear, gate = _linear(fields), OutputGateSpec(per_head=True)
    latents = replace(latent.attention(fields, interleaved=True), output_gate=gate)
    layers = tuple(
        LayerSpec(
            mixer=latents if full else linear,
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer, full in enumerate(attends(fields, default=lambda layer: (layer + 1) % period == 0))
    )
    return reading.model(fields, BAILING_HYBRID.architecture, layers, norm=norm, names=_NAMES)


def _linear(fields: Fields) -> KimiDeltaAttentionSpec:
    """Read Kimi Delta Attention; beside transformers' `linear_head_dim`, `head_dim` is the size that rotates."""
    size = "linear_head_dim" if fields.has("linear_head_dim") else "head_dim"
    heads = "linear_num_heads" if fields.has("linear_num_heads") else "num_attention_heads"
    bounded = fields.boolean("kda_safe_gate", True)
    return KimiDeltaAttentionSpec(
        num_heads=fields.integer(heads, 1, 1 << 12),
        head_dim=fields.integer(size, 1, 1 << 12),
        width=fields.integer("short_conv_kernel_size", 2, 64),
        activation=reading.activation(fields),
        norm_eps=fields.number("rms_norm_eps", 0, 1),
        low_rank=False,
        lower_bound=fields.number("kda_lower_bound", -1e3, 0) if bounded else None,
    )


BAILING_HYBRID = Family(
    architecture="BailingHybridForCausalLM",
    model_type="bailing_hybrid",
    read=_read,
    aliases={**KIMI_LINEAR.aliases, "linear_conv_kernel_dim": "short_conv_kernel_size"},
    defaults={
        "hidden_size": 2560,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 42,
        "num_attention_heads": 32,
        "head_dim": 128,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "short_conv_kernel_size": 4,
        "layer_group_size": 6,
        "kda_lower_bound": -5.0,
        "first_k_dense_replace": 2,
        "num_local_experts": 512,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 6e6,
        "max_position_embeddings": 262144,
        "vocab_size": 157184,
        "eos_token_id": 156895,
    },
)
