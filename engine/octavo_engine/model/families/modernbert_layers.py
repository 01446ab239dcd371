"""Reads the layers of ModernBERT and of its decoder; errors are ModelLoadError."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadTransformSpec, LayerNorms, LayerSpec, NormSpec

ALIASES = {"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"}
DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "rope_theta": 160000.0,
    "rope_local_base_freq": 10000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "classifier_activation": "gelu",
}


def norm_of(fields: Fields) -> NormSpec:
    """Return the spec of every norm."""
    return reading.layer_norm(fields, bias=fields.boolean("norm_bias", False), eps="norm_eps")


def layers(fields: Fields, window: int, *, causal: bool) -> tuple[LayerSpec, ...]:
    """Return the layers, of which most have `window`; the first has no norm before its attention.

    The window counts a token and those before it, in an encoder (not `causal`) those to each side.
    """
    norm, bias, mlp_bias = norm_of(fields), fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    values = {**fields.values, "sliding_window": window, **_ropes(fields)}
    fields = Fields(fields.origin, values, read=fields.read)
    period = fields.integer("global_attn_every_n_layers", 1, 4096)
    act = reading.activation(fields, "hidden_activation")
    mlp = reading.mlp(fields, activation=act, bias=mlp_bias, output_bias=mlp_bias)
    return tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=reading.layer_type(seen),
                grouped=False,
                causal=causal,
                qkv_bias=bias,
                output_bias=bias,
                window=seen,
            ),
            feed_forward=mlp,
            norms=LayerNorms(before_mixer=norm if layer else None, before_feed_forward=norm),
        )
        for layer, seen in enumerate(reading.windows(fields, default=lambda layer: layer % period != 0))
    )


def _ropes(fields: Fields) -> dict[str, Any]:
    """Return the fields of an older file about RoPE as transformers reads them here: scaled alike in all layers.

    Layers with a window have the base of the others where their own, `local_rope_theta`, is null.
    """
    local = fields.values["rope_theta" if "local_rope_theta" in fields.nulls else "rope_local_base_freq"]
    scaling = fields.mapping("rope_scaling")
    if scaling is None or fields.has("rope_parameters"):
        return {"rope_local_base_freq": local}
    of_each = dict.fromkeys(("full_attention", "sliding_attention"), scaling.values)
    return {"rope_local_base_freq": local, "rope_scaling": None, "rope_parameters": of_each}


def head_transform(fields: Fields) -> HeadTransformSpec:
    """Return the linear, the activation and the norm that precede any head."""
    return HeadTransformSpec(
        bias=fields.boolean("classifier_bias", False),
        activation=reading.activation(fields, "classifier_activation"),
        norm=norm_of(fields),
    )
