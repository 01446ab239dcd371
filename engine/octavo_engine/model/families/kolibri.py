"""Kolibri 1 of Aleph Alpha: Llama with QK norm, sliding windows, and experts in every layer.

Norms stand before and after attention and feed-forward. Where some layers have a window, the others have no RoPE.
Routing weights are sigmoids of the chosen experts' logits; a shared expert stands beside them.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec, RouterSpec, SharedExpertSpec

_NAMES = TensorNames(
    modules=(
        (".post_self_attn_layernorm.", ".post_attn_norm."),
        (".post_mlp_layernorm.", ".post_ffn_norm."),
        (".mlp.gate.e_score_correction_bias", ".moe.router.expert_bias"),
    ),
    after_mixer="model.layers.{layer}.post_attn_norm",
    after_feed_forward="model.layers.{layer}.post_ffn_norm",
    correction_bias="model.layers.{layer}.moe.router.expert_bias",
)


def _read(fields: Fields) -> ModelSpec:
    norm, hybrid = reading.rms_norm(fields), fields.has("sliding_window")
    router = RouterSpec(
        scores="sigmoid of chosen",
        correction_bias=True,
        renormalize=fields.boolean("norm_topk_prob", False),
        in_float32=True,
    )
    size = reading.intermediate_size(fields, "shared_expert_intermediate_size")
    beside = SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=size))
    rotating = reading.attention(fields, qk_norm=QKNormSpec(norm))
    layers = tuple(
        LayerSpec(
            mixer=replace(rotating, window=window, rope=None if hybrid and window is None else rotating.rope),
            feed_forward=mixtures.experts(fields, router, shared=beside),
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
        )
        for window in reading.windows(fields, default=lambda layer: (layer + 1) % 5 != 0)
    )
    return reading.model(fields, KOLIBRI1.architecture, layers, norm=norm, names=_NAMES)


KOLIBRI1 = Family(
    architecture="Kolibri1ForCausalLM",
    model_type="kolibri1",
    read=_read,
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "hidden_size": 2560,
        "num_hidden_layers": 50,
        "num_attention_heads": 48,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "num_experts": 384,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "vocab_size": 128000,
    },
    nullable=frozenset({"sliding_window"}),
)
