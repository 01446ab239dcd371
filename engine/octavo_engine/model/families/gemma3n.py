"""Gemma 3n of Google: Gemma 3 with several vectors for each token in the residual stream (AltUp).

Besides, layers read per-layer embeddings and have a residual of low rank beside attention (LAuReL), in the first layers
gates are sparse, and the last layers read what earlier ones have cached.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import kv_sharing, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gemma3n_feed_forward import feed_forwards
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AlternatingUpdatesSpec,
    AttentionSpec,
    HeadSpec,
    LaurelSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PerLayerInputSpec,
    QKNormSpec,
)

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields) -> ModelSpec:
    norm, windows = reading.rms_norm(fields), reading.windows(fields, default=lambda layer: (layer + 1) % 5 != 0)
    extra = PerLayerInputSpec(
        size=fields.integer("hidden_size_per_layer_input", 1, 1 << 16),
        vocab_size=fields.integer("vocab_size_per_layer_input", 1, 1 << 26),
        activation=reading.activation(fields, "hidden_activation"),
        norm=norm,
    )
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, window, source),
            feed_forward=mlp,
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
            per_layer_input=extra,
            laurel=LaurelSpec(rank=fields.integer("laurel_rank", 1, 1 << 16), norm=norm),
            alternating_updates=_updates(fields, norm),
        )
        for window, source, mlp in zip(windows, kv_sharing.sources(fields, windows), feed_forwards(fields), strict=True)
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "final_logit_softcapping")
    )
    scale = reading.hidden_size(fields) ** 0.5
    return reading.model(
        fields, GEMMA3N.architecture, layers, norm=norm, embedding_scale=scale, head=head, names=_NAMES
    )


def _mixer(fields: Fields, norm: NormSpec, window: int | None, source: int | None) -> AttentionSpec:
    bias = fields.boolean("attention_bias", False)
    return reading.attention(
        fields,
        layer_type=reading.layer_type(window),
        scale=1.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        value_norm=None if source is not None else NormSpec(norm.eps, weight=False),
        kv_of_layer=source,
        window=window,
    )


def _updates(fields: Fields, norm: NormSpec) -> AlternatingUpdatesSpec:
    count = fields.integer("altup_num_inputs", 2, 64)
    active = fields.integer("altup_active_idx", 0, count - 1)
    return AlternatingUpdatesSpec(
        count=count, active=active, norm=norm, scaled=fields.boolean("altup_correct_scale", True)
    )


GEMMA3N = Family(
    architecture="Gemma3nForCausalLM",
    model_type="gemma3n_text",
    read=_read,
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 35,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "final_logit_softcapping": 30.0,
        "vocab_size": 262400,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_num_inputs": 4,
        "altup_active_idx": 0,
        "laurel_rank": 64,
        "num_kv_shared_layers": 15,
        "eos_token_id": 1,
    },
)
