"""The fields of UltraBERT's layers: published files have one number a layer, transformers one for each type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields

_BASES = {"sliding_attention": 10000.0, "full_attention": 2560000.0}


def with_fields_by_type(fields: Fields) -> Fields:
    """Return the fields with `layer_types` and `rope_parameters`, for which published files have one number a layer.

    ModelLoadError if these differ within a type of layers.
    """
    values, sizes = dict(fields.values), fields.integers("attention_windows")
    if len(set(sizes) - {0}) > 1:
        raise fields.wrong("attention_windows", list(sizes), "has windows of several sizes, which is not supported")
    values["sliding_window"] = next(filter(None, sizes), fields.integer("sliding_window", 1, 1 << 30))
    attends = sizes or [(layer + 1) % 3 for layer in range(reading.num_layers(fields))]
    default = ["sliding_attention" if each else "full_attention" for each in attends]
    values.setdefault("layer_types", default)
    kinds = reading.layer_types(replace(fields, values=values), set(_BASES), default.__getitem__)
    if not fields.has("rope_parameters"):
        bases = _bases(fields, kinds) if fields.has("rope_theta") else _BASES
        values["rope_parameters"] = {kind: {"rope_theta": base} for kind, base in bases.items()}
    values.pop("rope_theta", None)
    return replace(fields, values=values)


def _bases(fields: Fields, kinds: list[str]) -> dict[str, Any]:
    """Return the base of RoPE of each type of layers from the bases of all layers, or from one for all."""
    given = fields.values["rope_theta"]
    bases = given if isinstance(given, list) else [given] * len(kinds)
    if len(bases) != len(kinds):
        raise fields.wrong("rope_theta", bases, f"does not have a number for each of {len(kinds)} layers")
    of_kind = dict(zip(kinds, bases, strict=True))
    if [of_kind[kind] for kind in kinds] != bases:
        raise fields.wrong("rope_theta", bases, "differs between layers of one type, which is not supported")
    return of_kind
