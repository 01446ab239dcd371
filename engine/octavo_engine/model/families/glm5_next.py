"""GLM-5.3 Flash (Glm5Next): Kimi Delta Attention in three of four layers, latent attention without RoPE in the others,
hyper-connections, and GLM-5's experts in all but the first layers.

An indexer chooses the tokens that latent attention attends to, in pools of neighbouring ones.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.delta_net import attends
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.glm5_next_layers import (
    LOWER_BOUND,
    latent_attentions,
    linear_attention,
    unread_indexers,
)
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, MixedConnectionsSpec, ModelSpec

_NAMES = TensorNames(modules=((".self_attn.forget_gate.", ".self_attn."),))
_ENDINGS = tuple(
    (f".hc_{part}_{end}", f".{part}_hc.{end}") for part in ("attn", "ffn") for end in ("fn", "base", "scale")
)
"""Endings in files, with those of transformers' modules."""


def _read(fields: Fields) -> ModelSpec:
    norm, linear = reading.rms_norm(fields), linear_attention(fields)
    connections = MixedConnectionsSpec(
        count=fields.integer("hc_mult", 1, 64),
        norm_eps=norm.eps,
        iterations=fields.integer("hc_sinkhorn_iters", 1, 200),
        eps=fields.number("hc_eps", 0, 1),
        ends_in_mean=True,
    )
    limit = fields.number("swiglu_limit", 1e-3, 1e6)
    moe = mixtures.deepseek_experts(fields)
    if moe.shared is not None:
        shared = replace(moe.shared, mlp=replace(moe.shared.mlp, limit=limit, up_offset=0.0))
        moe = replace(moe, activation="silu", shared=shared, limit=limit, up_offset=0.0)
    feed_forward = mixtures.by_type(fields, moe, 3, limit=limit, up_offset=0.0)
    full = attends(fields, lambda layer: layer % 4 == 3, "indexed_attention")
    layers = tuple(
        LayerSpec(
            mixer=latents if latents is not None else linear,
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
            connections=connections,
        )
        for layer, latents in enumerate(latent_attentions(fields, full))
    )
    stored = StoredNames(ignored=unread_indexers(layers), endings=_ENDINGS)
    return reading.model(fields, GLM5_NEXT.architecture, layers, norm=norm, names=_NAMES, stored_names=stored)


GLM5_NEXT = Family(
    architecture="Glm5NextTextForCausalLM",
    model_type="glm5_next_text",
    read=_read,
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 45,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "linear_head_dim": 128,
        "linear_num_heads": 64,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": LOWER_BOUND,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 32,
        "index_kpool": 16,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "swiglu_limit": 10.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 1048576,
        "vocab_size": 154880,
    },
    nullable=frozenset({"linear_lower_bound"}),
)
