"""Reads Gemma 4's attention; its heads have another size in layers that see all tokens. Errors are ModelLoadError."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.per_layer import own_values
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, NormSpec, QKNormSpec


def mixer(fields: Fields, norm: NormSpec, window: int | None, layer: int, source: int | None) -> AttentionSpec:
    """Return the attention of a layer with this window, which reads the cache of the layer `source` if given."""
    bias, value_is_key = fields.boolean("attention_bias", False), fields.boolean("attention_k_eq_v", False)
    return reading.attention(
        Fields(fields.origin, {**fields.values, **_overrides(fields, layer, window)}, read=fields.read),
        layer_type=reading.layer_type(window),
        scale=1.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        value_norm=None if source is not None else NormSpec(norm.eps, weight=False),
        value_is_key=value_is_key and window is None and source is None,
        kv_of_layer=source,
        window=window,
    )


def _overrides(fields: Fields, layer: int, window: int | None) -> dict[str, Any]:
    """Return the fields of which a layer has values of its own."""
    given = fields.has("per_layer_config")
    if not given and window is None:
        own_heads = fields.boolean("attention_k_eq_v", False) and fields.has("num_global_key_value_heads")
        heads = {"num_key_value_heads": fields.values["num_global_key_value_heads"]} if own_heads else {}
        return {"head_dim": fields.integer("global_head_dim", 2, 1024, default=512), **heads}
    values = own_values(fields, layer)
    if values is None:
        return {}
    if unknown := sorted(values.values.keys() - {"head_dim", "num_key_value_heads"}):
        raise values.wrong(unknown[0], values.values[unknown[0]], "is not supported for one layer")
    return dict(values.values)
