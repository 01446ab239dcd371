"""Reads `moe_layer_freq`, by which files with DeepSeek's fields say which layers have experts."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields


def with_mlp_layer_types(fields: Fields) -> Fields:
    """Return `fields` with `mlp_layer_types`; published files have `first_k_dense_replace` and `moe_layer_freq`."""
    if fields.has("mlp_layer_types"):
        return fields
    count, first = reading.num_layers(fields), fields.integer("first_k_dense_replace", 0, 1 << 16)
    if isinstance(fields.values.get("moe_layer_freq"), list):
        sparse = [each != 0 for each in fields.integers("moe_layer_freq")]
    else:
        every = fields.integer("moe_layer_freq", 1, 1 << 16, default=1)
        sparse = [layer % every == 0 for layer in range(count)]
    types = ["sparse" if layer >= first and each else "dense" for layer, each in enumerate(sparse)]
    return replace(fields, values={**fields.values, "mlp_layer_types": types})
