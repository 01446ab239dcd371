"""Reads `per_layer_config`, which has an object for each layer whose sizes are not the model's."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from octavo_engine.model.fields import Fields


def of_layer(fields: Fields, layer: int, allowed: Set[str]) -> Fields:
    """`fields` with those that the layer has of its own, each of which has to be `allowed`."""
    every = fields.mapping("per_layer_config") or Fields(fields.origin, {})
    own = every.mapping(str(layer)) or Fields(fields.origin, {})
    if unknown := set(own.values) - allowed:
        name = min(unknown)
        raise own.wrong(name, own.values[name], "is not supported for one layer alone")
    return replace(fields, values={**fields.values, **own.values})
