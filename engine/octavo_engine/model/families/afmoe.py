"""AFMoE, the architecture of Arcee's Trinity models: a mixture of experts with gated attention.

Unlike in Llama, each head of query and key is normalised, the heads' results are multiplied with a gate, and only
layers with a sliding window have RoPE. Norms stand before and after attention and feed-forward. The first layers are
dense; in the others a router with sigmoid scores and a correction bias chooses experts, beside shared ones.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
    RouterSpec,
)

_LAYER = "model.layers.{layer}"
_NAMES = TensorNames(
    before_feed_forward=f"{_LAYER}.pre_mlp_layernorm",
    after_feed_forward=f"{_LAYER}.post_mlp_layernorm",
    router=f"{_LAYER}.mlp.router.gate",
    correction_bias=f"{_LAYER}.mlp.expert_bias",
)


def _read(fields: Fields) -> ModelSpec:
    norm, every = reading.rms_norm(fields), fields.integer("global_attn_every_n_layers", 1, 4096)
    router = RouterSpec(
        scores="sigmoid",
        correction_bias=True,
        renormalize=True,
        sum_offset=1e-20,
        scale=reading.scale(fields, "route_scale"),
    )
    moe = mixtures.experts(fields, router, shared=mixtures.shared(fields, "num_shared_experts"))
    feed_forward = mixtures.after_dense(fields, moe, "num_dense_layers")
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, window),
            feed_forward=feed_forward(layer),
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda layer: (layer + 1) % every != 0))
    )
    scale = reading.hidden_size(fields) ** 0.5 if fields.boolean("mup_enabled", False) else 1.0
    return reading.model(fields, AFMOE.architecture, layers, norm=norm, embedding_scale=scale, names=_NAMES)


def _mixer(fields: Fields, norm: NormSpec, window: int | None) -> AttentionSpec:
    bias = fields.boolean("attention_bias", False)
    mixer = reading.attention(
        fields,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec(),
        window=window,
    )
    return replace(mixer, rope=None) if window is None else mixer


AFMOE = Family(
    architecture="AfmoeForCausalLM",
    model_type="afmoe",
    read=_read,
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 16384,
        "sliding_window": 1024,
        "global_attn_every_n_layers": 4,
        "intermediate_size": 6144,
        "moe_intermediate_size": 1408,
        "num_dense_layers": 1,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "num_shared_experts": 2,
        "route_scale": 1.0,
    },
)
