"""Beam of Reflection: gated attention, with RoPE and windows or of all tokens, and DeepSeek V3's experts.

Norms stand before and after attention and feed-forward. The residual stream of transformers is the sum of n parts,
divided by the root of n. Here it is that sum, whose norms have n times the epsilon.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
    QueryScaling,
)

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields) -> ModelSpec:
    norm, last = reading.rms_norm(fields), reading.num_layers(fields) - 1
    windows = reading.windows(fields, default=lambda layer: (layer + 1) % 6 != 0 and layer != last)
    feed_forward = mixtures.by_type(fields, mixtures.experts(fields, mixtures.sigmoid_router(fields)), 3)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, window),
            feed_forward=feed_forward(layer),
            norms=LayerNorms(
                before_mixer=_of_sum(norm, 2 * layer + 1),
                after_mixer=norm,
                before_feed_forward=_of_sum(norm, 2 * layer + 2),
                after_feed_forward=norm,
            ),
        )
        for layer, window in enumerate(windows)
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", False), softcap=reading.softcap(fields, "final_logit_softcapping")
    )
    return reading.model(
        fields, BEAM.architecture, layers, norm=_of_sum(norm, 2 * len(layers) + 1), head=head, names=_NAMES
    )


def _of_sum(norm: NormSpec, parts: int) -> NormSpec:
    return replace(norm, eps=norm.eps * parts)


def _mixer(fields: Fields, norm: NormSpec, window: int | None) -> AttentionSpec:
    bias = fields.boolean("attention_bias", False)
    mixer = reading.attention(
        fields,
        layer_type=reading.layer_type(window),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec(head_bias=True),
        window=window,
    )
    scaling = QueryScaling(0.1, 2048, shift=1, power=True)
    return replace(mixer, query_scaling=scaling) if mixer.rope is None else mixer


BEAM = Family(
    architecture="BeamForCausalLM",
    model_type="beam",
    read=_read,
    nullable=frozenset({"final_logit_softcapping"}),
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": None,
        },
        "max_position_embeddings": 8192,
        "sliding_window": 512,
        "intermediate_size": 20480,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2560,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "final_logit_softcapping": 30.0,
    },
)
