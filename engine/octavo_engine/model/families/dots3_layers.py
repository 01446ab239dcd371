"""Reads the sizes and the RoPE of each layer of dots3; layers with a sliding window have their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.per_layer import of_layer, rope_of_type
from octavo_engine.model.fields import Fields

_FULL, _INDEXED, _SLIDING = "full_attention", "indexed_attention", "sliding_attention"
_OF_WINDOWS = {
    "num_attention_heads": 64,
    "q_lora_rank": 1024,
    "kv_lora_rank": 1024,
    "head_dim": 256,
    "qk_nope_head_dim": 192,
    "v_head_dim": 128,
}
"""The default sizes of layers with windows; published files have `swa_` before these names."""


def fields_of_layers(fields: Fields) -> list[tuple[str, Fields]]:
    """Return for each layer its type, and `fields` with its sizes and its RoPE in place of the model's."""
    kinds = reading.layer_types(fields, {_FULL, _INDEXED, _SLIDING}, lambda layer: _default_type(fields, layer))
    if fields.boolean("use_dsa", not fields.has("per_layer_config")):
        kinds = [_INDEXED if kind == _FULL else kind for kind in kinds]
    elif fields.has("use_dsa"):
        kinds = [_FULL if kind == _INDEXED else kind for kind in kinds]
    return [(kind, _of_layer(fields, kind, layer)) for layer, kind in enumerate(kinds)]


def _default_type(fields: Fields, layer: int) -> str:
    windows = fields.boolean("use_sliding_window", True)
    return _SLIDING if windows and layer >= 2 and layer % 4 != 1 else _INDEXED


def _of_layer(fields: Fields, kind: str, layer: int) -> Fields:
    """Return one layer's fields: by `per_layer_config`, or in published files by those of all layers with windows."""
    own = of_layer(fields, layer, {*_OF_WINDOWS, "qk_rope_head_dim", "num_key_value_heads"})
    if kind == _SLIDING and not fields.has("per_layer_config"):
        own = replace(own, values={**own.values, **_sizes_of_windows(fields)})
    values = {**own.values, "rope_parameters": _rope(fields, kind)}
    return replace(fields, values=values).without("rope_scaling", "partial_rotary_factor")


def _sizes_of_windows(fields: Fields) -> Mapping[str, Any]:
    given = {name: fields.integer(f"swa_{name}", 1, 1 << 16, default=size) for name, size in _OF_WINDOWS.items()}
    rotary_dim = given["head_dim"] - given["qk_nope_head_dim"]
    return {**given, "qk_rope_head_dim": fields.integer("swa_qk_rope_head_dim", 1, 1024, default=rotary_dim)}


def _rope(fields: Fields, kind: str) -> Mapping[str, Any]:
    """Return the RoPE fields of one type of layers; `qk_rope_head_dim` says how much of a head rotates."""
    theta, given = fields.number("rope_theta", 1e-3, 1e12), rope_of_type(fields, kind)
    if given is None and kind == _SLIDING:
        theta = fields.number("swa_rope_theta", 1e-3, 1e12, default=50_000.0)
    return {"rope_theta": theta, **(given or {})}
