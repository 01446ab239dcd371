"""EmbeddingGemma 2 of Google: Gemma 4's layers, in which tokens also see what follows, and a projection at the end."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.per_layer import of_layer
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PerLayerInputSpec,
    QKNormSpec,
)

_BLOCK = "model.layers.{layer}.ple_block"
_NAMES = TensorNames(
    before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm",
    per_layer_projection="model.ple.per_layer_model_projection",
    per_layer_projection_norm="model.ple.per_layer_projection_norm",
    per_layer_gate=f"{_BLOCK}.per_layer_input_gate",
    per_layer_output=f"{_BLOCK}.per_layer_projection",
    per_layer_norm=f"{_BLOCK}.post_per_layer_input_norm",
)
_MODULES = ("embed_tokens.", "layers.", "norm.", "ple.", "embedding_projection.")
_STORED = StoredNames(renamed=tuple((module, f"model.{module}") for module in _MODULES))


def _read(fields: Fields) -> ModelSpec:
    norm, activation = reading.rms_norm(fields), reading.activation(fields, "hidden_activation")
    period = fields.integer("sliding_window_pattern", 1, 4096)
    windows = list(reading.windows(fields, default=lambda layer: (layer + 1) % period != 0))
    windows[-1] = None  # whatever layer_types says
    size = fields.integer("hidden_size_per_layer_input", 1, 1 << 16)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, layer, window),
            feed_forward=reading.mlp(fields, activation=activation),
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
            per_layer_input=PerLayerInputSpec(size=size, vocab_size=0, activation=activation, norm=norm),
            output_scale=True,
        )
        for layer, window in enumerate(windows)
    )
    return reading.model(
        fields,
        EMBEDDING_GEMMA2.architecture,
        layers,
        norm=norm,
        embedding_scale=reading.hidden_size(fields) ** 0.5,
        head=None,
        vector_size=fields.integer("embedding_dim", 1, 1 << 20),
        names=_NAMES,
        stored_names=_STORED,
    )


def _mixer(fields: Fields, norm: NormSpec, layer: int, window: int | None) -> AttentionSpec:
    if fields.has("per_layer_config"):
        fields = of_layer(fields, layer, {"head_dim", "num_key_value_heads"})
    elif window is None:
        own = {
            "head_dim": fields.values["global_head_dim"],
            "num_key_value_heads": fields.values["num_global_key_value_heads"],
        }
        fields = replace(fields, values={**fields.values, **own})
    bias = fields.boolean("attention_bias", False)
    return reading.attention(
        fields,
        layer_type=reading.layer_type(window),
        scale=1.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        value_norm=NormSpec(norm.eps, weight=False),
        causal=False,
        window=None if window is None else window + 1,  # here the token itself counts
    )


EMBEDDING_GEMMA2 = Family(
    architecture="EmbeddingGemma2TextModel",
    model_type="embedding_gemma2_text",
    read=_read,
    defaults={
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 1,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_size_per_layer_input": 512,
        "embedding_dim": 768,
        "eos_token_id": 1,
    },
)
