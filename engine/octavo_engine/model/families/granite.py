"""IBM's Granite 3 and 4: Llama's layers with four scales, of embeddings, scores, residuals and logits.

The dense models with windows have sinks, and a base of RoPE for each layer; 0 where the layer rotates nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, HeadSpec, LayerSpec, ModelSpec


def _model(fields: Fields, architecture: str, mixers: tuple[AttentionSpec, ...]) -> ModelSpec:
    norm, mlp_bias = reading.rms_norm(fields), fields.boolean("mlp_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=mixer,
            feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
            norms=reading.norms_before(norm),
            residual_scale=reading.scale(fields, "residual_multiplier"),
        )
        for mixer in mixers
    )
    return reading.model(
        fields,
        architecture,
        layers,
        norm=norm,
        embedding_scale=reading.scale(fields, "embedding_multiplier"),
        head=HeadSpec(fields.boolean("tie_word_embeddings", False), scale=1 / reading.scale(fields, "logits_scaling")),
    )


def _mixer(fields: Fields, **values: Any) -> AttentionSpec:
    bias, scale = fields.boolean("attention_bias", False), reading.scale(fields, "attention_multiplier")
    return reading.attention(fields, qkv_bias=bias, output_bias=bias, scale=scale, **values)


def _read(fields: Fields) -> ModelSpec:
    return _model(fields, GRANITE.architecture, (_mixer(fields),) * reading.num_layers(fields))


def _read_swa(fields: Fields) -> ModelSpec:
    windows = reading.windows(fields, default=lambda layer: layer % 4 != 0)
    mixers = tuple(_mixer(fields, sinks=True, window=window) for window in windows)
    if (thetas := fields.values.get("layer_rope_theta")) is not None:
        if not isinstance(thetas, list) or len(thetas) != len(windows) or not all(map(_is_theta, thetas)):
            raise fields.wrong("layer_rope_theta", thetas, f"is not {len(windows)} numbers, each 0 or at least 1")
        mixers = tuple(
            reading.with_rope(mixer, theta=float(theta)) if theta else replace(mixer, rope=None)
            for mixer, theta in zip(mixers, thetas, strict=True)
        )
    return _model(fields, GRANITE_SWA.architecture, mixers)


def _is_theta(value: Any) -> bool:
    return value in (None, 0) or (isinstance(value, int | float) and 1 <= value <= 1e12)


_DEFAULTS = {
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
    defaults={**_DEFAULTS, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "eos_token_id": 2},
)
GRANITE_SWA = Family(
    architecture="GraniteSWAForCausalLM",
    model_type="granite_swa",
    read=_read_swa,
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "sliding_window": 128,
        "tie_word_embeddings": True,
        "eos_token_id": 100257,
    },
)
