"""IBM's Granite 3 and 4: Llama's layers with four scales, of embeddings, scores, residuals and logits.

The dense models with windows have sinks, and a base of RoPE for each layer; 0 where the layer rotates nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, FeedForward, HeadSpec, LayerSpec, Mixer, MLPSpec, ModelSpec


def model(
    fields: Fields, architecture: str, mixers: tuple[Mixer, ...], feed_forward: FeedForward, **values: Any
) -> ModelSpec:
    """A Granite with these mixers and this feed-forward in each layer; `values` are the model's."""
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


def _mlp(fields: Fields) -> MLPSpec:
    bias = fields.boolean("mlp_bias", False)
    return reading.mlp(fields, bias=bias, output_bias=bias)


def mixer(fields: Fields, **values: Any) -> AttentionSpec:
    """Attention with Granite's scale; `values` add to what fields say."""
    bias, scale = fields.boolean("attention_bias", False), reading.scale(fields, "attention_multiplier")
    return reading.attention(fields, qkv_bias=bias, output_bias=bias, scale=scale, **values)


def _read(fields: Fields) -> ModelSpec:
    return model(fields, GRANITE.architecture, (mixer(fields),) * reading.num_layers(fields), _mlp(fields))


def _read_swa(fields: Fields) -> ModelSpec:
    return model(fields, GRANITE_SWA.architecture, mixers_with_windows(fields), _mlp(fields))


def mixers_with_windows(fields: Fields) -> tuple[AttentionSpec, ...]:
    """Of each layer, with sinks, most with a window, and with a base of RoPE of its own if the file says so."""
    windows = reading.windows(fields, default=lambda layer: layer % 4 != 0)
    mixers = tuple(mixer(fields, sinks=True, window=window) for window in windows)
    if (thetas := fields.values.get("layer_rope_theta")) is not None:
        if not isinstance(thetas, list) or len(thetas) != len(windows) or not all(map(_is_theta, thetas)):
            raise fields.wrong("layer_rope_theta", thetas, f"is not {len(windows)} numbers, each 0 or at least 1")
        mixers = tuple(
            reading.with_rope(each, theta=float(theta)) if theta else replace(each, rope=None)
            for each, theta in zip(mixers, thetas, strict=True)
        )
    return mixers


def _is_theta(value: Any) -> bool:
    return value in (None, 0) or (isinstance(value, int | float) and 1 <= value <= 1e12)


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
GRANITE_SWA = Family(
    architecture="GraniteSWAForCausalLM",
    model_type="granite_swa",
    read=_read_swa,
    defaults={
        **DEFAULTS,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "sliding_window": 128,
        "tie_word_embeddings": True,
        "eos_token_id": 100257,
    },
)
