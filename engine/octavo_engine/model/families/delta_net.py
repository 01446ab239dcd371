"""Reads the mixers of families with Gated DeltaNet in most layers; errors are ModelLoadError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import GatedDeltaNetSpec


def mixer(fields: Fields, **values: Any) -> GatedDeltaNetSpec:
    """Return the Gated DeltaNet of every layer that has it; `values` are further fields of its spec."""
    heads, key_heads = (fields.integer(f"linear_num_{kind}_heads", 1, 1 << 12) for kind in ("value", "key"))
    if heads % key_heads:
        raise fields.wrong("linear_num_key_heads", key_heads, f"does not divide linear_num_value_heads {heads}")
    return GatedDeltaNetSpec(
        num_heads=heads,
        num_kv_heads=key_heads,
        key_dim=fields.integer("linear_key_head_dim", 1, 1 << 12),
        value_dim=fields.integer("linear_value_head_dim", 1, 1 << 12),
        width=fields.integer("linear_conv_kernel_dim", 2, 64),
        activation=reading.activation(fields),
        **values,
    )


def attends(fields: Fields, default: Callable[[int], bool], *others: str) -> list[bool]:
    """Return for each layer whether it has attention, by `layer_types`, or by `default` where that is absent.

    `others` are further layer types with attention.
    """
    count, kinds, known = reading.num_layers(fields), fields.values.get("layer_types"), ("full_attention", *others)
    if kinds is None:
        return [default(layer) for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - {"linear_attention", *known}:
        raise fields.wrong("layer_types", kinds, f"is not {count} times linear_attention or {' or '.join(known)}")
    return [kind != "linear_attention" for kind in kinds]


def last_of_each_interval(fields: Fields) -> Callable[[int], bool]:
    """Return a function that is true for the last of every `full_attention_interval` layers."""
    interval = fields.integer("full_attention_interval", 1, 4096)
    return lambda layer: (layer + 1) % interval == 0
