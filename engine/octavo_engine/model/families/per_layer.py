"""Reads fields that differ between layers: `per_layer_config`, by layer, and `rope_parameters`, by type of layer."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

from octavo_engine.model.fields import Fields

_TYPES = {"full_attention", "indexed_attention", "sliding_attention"}


def of_layer(fields: Fields, layer: int, allowed: Set[str]) -> Fields:
    """Return `fields` with the layer's own values; ModelLoadError if a field that has one is not `allowed`."""
    own = own_values(fields, layer) or Fields(fields.origin, {})
    if unknown := set(own.values) - allowed:
        name = min(unknown)
        raise own.wrong(name, own.values[name], "is not supported for one layer alone")
    return replace(fields, values={**fields.values, **own.values})


def own_values(fields: Fields, layer: int) -> Fields | None:
    """Return the layer's values in `per_layer_config`; None if it has none.

    transformers writes numbers of layers with leading zeros, all of the same length.
    """
    every = fields.mapping("per_layer_config") or Fields(fields.origin, {})
    name = next((name for name in every.values if (name.lstrip("0") or "0") == str(layer)), None)
    return None if name is None else every.mapping(name)


def rope_of_type(fields: Fields, kind: str) -> Mapping[str, Any] | None:
    """Return the fields of one layer type's RoPE, without the rotated share of a head; None if the file has none."""
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    if rope is not None and _TYPES & set(rope.values):
        own = rope.mapping(kind)
        if own is None:
            raise rope.wrong(kind, None, "is missing, and some layers are of that type")
        rope = own.without("truncate")  # which transformers reads beside the types alone
    return None if rope is None else rope.without("partial_rotary_factor").values
