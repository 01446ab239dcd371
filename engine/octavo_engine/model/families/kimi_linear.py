"""Kimi Linear of Moonshot: Kimi Delta Attention in three of four layers, latent attention without RoPE in the others,
and DeepSeek V3's experts in all but the first layers."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.delta_net import attends
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import KimiDeltaAttentionSpec, LatentAttentionSpec, LayerSpec, ModelSpec

_EXPERT = "model.layers.{layer}.mlp.experts.{expert}"
_NAMES = TensorNames(
    modules=((".self_attn.forget_gate.", ".self_attn."),),
    expert_gate=f"{_EXPERT}.w1",
    expert_up=f"{_EXPERT}.w3",
    expert_down=f"{_EXPERT}.w2",
)


def _read(fields: Fields) -> ModelSpec:
    norm, linear, latents = reading.rms_norm(fields), _linear(fields), _latents(fields)
    router, beside = mixtures.sigmoid_router(fields), mixtures.shared(fields, "n_shared_experts")
    experts = mixtures.experts(fields, router, count="num_local_experts", shared=beside)
    feed_forward = mixtures.by_type(fields, experts, fields.integer("first_k_dense_replace", 0, 4096))
    layers = tuple(
        LayerSpec(
            mixer=latents if full else linear,
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer, full in enumerate(_attends(fields))
    )
    stored = StoredNames(
        renamed=tuple(
            (f"model.layers.{layer}.block_sparse_moe.", f"model.layers.{layer}.mlp.") for layer in range(len(layers))
        )
    )
    return reading.model(fields, KIMI_LINEAR.architecture, layers, norm=norm, names=_NAMES, stored_names=stored)


def _linear(fields: Fields) -> KimiDeltaAttentionSpec:
    """Read Kimi Delta Attention; `linear_attn_config`, as published files have it, takes precedence."""
    own = fields.mapping("linear_attn_config") or Fields(fields.origin, {})

    def number(name: str, common: str, low: int, high: int) -> int:
        return own.integer(name, low, high) if own.has(name) else fields.integer(common, low, high)

    return KimiDeltaAttentionSpec(
        num_heads=number("num_heads", "linear_num_heads", 1, 1 << 12),
        head_dim=number("head_dim", "linear_head_dim", 1, 1 << 12),
        width=number("short_conv_kernel_size", "linear_conv_kernel_dim", 2, 64),
        activation=reading.activation(fields),
        norm_eps=fields.number("rms_norm_eps", 0, 1),
    )


def _latents(fields: Fields) -> LatentAttentionSpec:
    """Return latent attention without RoPE, even if the file has fields of RoPE."""
    plain = fields.without("rope_parameters", "rope_scaling").with_defaults(rope_theta=10000.0)
    return replace(latent.attention(plain, interleaved=False), rope=None)


def _attends(fields: Fields) -> list[bool]:
    """Return for each layer whether it has latent attention; published files number such layers from 1."""
    own, count = fields.mapping("linear_attn_config"), reading.num_layers(fields)
    if fields.has("layer_types") or own is None or not own.has("full_attn_layers"):
        return attends(fields, default=lambda layer: layer > 0 and layer % 4 == 0)
    full, other = own.integers("full_attn_layers"), own.integers("kda_layers")
    if sorted((*full, *other)) != list(range(1, count + 1)):
        raise own.wrong("kda_layers", other, f"and full_attn_layers do not name {count} layers")
    return [layer + 1 in full for layer in range(count)]


KIMI_LINEAR = Family(
    architecture="KimiLinearForCausalLM",
    model_type="kimi_linear",
    read=_read,
    aliases={
        "model_max_length": "max_position_embeddings",
        "moe_renormalize": "norm_topk_prob",
        "num_expert_group": "n_group",
        "num_experts": "num_local_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
    },
    defaults={
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "linear_head_dim": 128,
        "linear_num_heads": 32,
        "linear_conv_kernel_dim": 4,
        "first_k_dense_replace": 1,
        "num_local_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.446,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1048576,
        "vocab_size": 163840,
        "eos_token_id": 163586,
    },
)
