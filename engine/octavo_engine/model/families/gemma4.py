"""Gemma 4 of Google: Gemma 3 with larger heads in the layers that see all tokens, and per-layer embeddings.

Attention scores are not scaled. The last layers may read what earlier ones have cached, and some models have experts
beside the dense feed-forward. The last layer always sees all tokens.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import gemma4_attention, gemma4_experts, kv_sharing, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    FeedForward,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
    PerLayerInputSpec,
)


def _read(fields: Fields, architecture: str) -> ModelSpec:
    if fields.has("use_bidirectional_attention") and fields.text("use_bidirectional_attention") != "vision":
        raise fields.wrong("use_bidirectional_attention", "all", "is not supported")
    norm, activation = reading.rms_norm(fields), reading.activation(fields, "hidden_activation")
    windows = list(reading.windows(fields, default=lambda layer: (layer + 1) % 6 != 0))
    windows[-1] = None  # whatever layer_types says
    sources, mlp = kv_sharing.sources(fields, windows), reading.mlp(fields, activation=activation)
    doubled = fields.boolean("use_double_wide_mlp", False)
    wide = replace(mlp, intermediate_size=2 * mlp.intermediate_size) if doubled else mlp
    norms = LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm)
    experts = fields.boolean("enable_moe_block", False)
    if experts:
        norms = replace(norms, before_feed_forward=None)

    def feed_forward(mlp: MLPSpec) -> FeedForward:
        return gemma4_experts.experts_beside(fields, mlp, norm) if experts else mlp

    layers = tuple(
        LayerSpec(
            mixer=gemma4_attention.mixer(fields, norm, window, layer, source),
            feed_forward=feed_forward(mlp if source is None else wide),
            norms=norms,
            per_layer_input=_per_layer_input(fields, norm, activation),
            output_scale=True,
        )
        for layer, (window, source) in enumerate(zip(windows, sources, strict=True))
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "final_logit_softcapping")
    )
    scale = reading.hidden_size(fields) ** 0.5
    return reading.model(
        fields, architecture, layers, norm=norm, embedding_scale=scale, head=head, names=gemma4_experts.NAMES
    )


def _per_layer_input(fields: Fields, norm: NormSpec, activation: str) -> PerLayerInputSpec | None:
    size = fields.integer("hidden_size_per_layer_input", 0, 1 << 16)
    vocab_size = fields.integer("vocab_size_per_layer_input", 1, 1 << 26)
    return PerLayerInputSpec(size=size, vocab_size=vocab_size, activation=activation, norm=norm) if size else None


_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262144,
    "eos_token_id": 1,
}
GEMMA4: Family = Family(
    architecture="Gemma4ForCausalLM",
    model_type="gemma4_text",
    read=lambda fields: _read(fields, GEMMA4.architecture),
    defaults=_DEFAULTS,
)
GEMMA4_UNIFIED: Family = Family(
    architecture="Gemma4UnifiedForCausalLM",
    model_type="gemma4_unified_text",
    read=lambda fields: _read(fields, GEMMA4_UNIFIED.architecture),
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
)
"""The language model of Gemma 4 Unified, by default without per-layer embeddings."""
