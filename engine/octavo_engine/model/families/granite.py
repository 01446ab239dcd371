"""Granite 3 and 4 of IBM: Llama with four scales: of embeddings, attention scores, residuals and logits."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, FeedForward, HeadSpec, LayerSpec, Mixer, MLPSpec, ModelSpec


def model(
    fields: Fields, architecture: str, mixers: tuple[Mixer, ...], feed_forward: FeedForward, **values: Any
) -> ModelSpec:
    """Return a Granite with these mixers, and this feed-forward in each layer; `values` are fields of ModelSpec."""
    norm = reading.rms_norm(fields)
    layers = tuple(
        LayerSpec(
            mixer=each,
            feed_forward=feed_forward,
            norms=reading.norms_before(norm),
            residual_scale=reading.scale(fields, "residual_multiplier"),
        )
        for each in mixers
    )
    return reading.model(
        fields,
        architecture,
        layers,
        norm=norm,
        embedding_scale=reading.scale(fields, "embedding_multiplier"),
        head=HeadSpec(fields.boolean("tie_word_embeddings", False), scale=1 / reading.scale(fields, "logits_scaling")),
        **values,
    )


def mlp(fields: Fields) -> MLPSpec:
    """Return the dense feed-forward of every layer."""
    bias = fields.boolean("mlp_bias", False)
    return reading.mlp(fields, bias=bias, output_bias=bias)


def mixer(fields: Fields, **values: Any) -> AttentionSpec:
    """Return attention with Granite's scale of scores; `values` are further fields of AttentionSpec."""
    bias, scale = fields.boolean("attention_bias", False), reading.scale(fields, "attention_multiplier")
    return reading.attention(fields, qkv_bias=bias, output_bias=bias, scale=scale, **values)


def _read(fields: Fields) -> ModelSpec:
    return model(fields, GRANITE.architecture, (mixer(fields),) * reading.num_layers(fields), mlp(fields))


DEFAULTS = {
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
}
GRANITE = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    read=_read,
    defaults={**DEFAULTS, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "eos_token_id": 2},
)
