"""Translates the fields of Step 3.7's published files to the names and shapes that transformers 5 writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields

ALIASES = {
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
    "num_attention_groups": "num_key_value_heads",
    "num_mtp_layers": "num_nextn_predict_layers",
}
_LISTS = ("layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared", "rope_theta")


def as_saved(fields: Fields) -> Fields:
    """Return the fields as transformers saves them; its class computes SiLU, whatever `hidden_act` says."""
    fields = replace(fields, values={**fields.values, **_without_mtp_layers(fields), "hidden_act": "silu"})
    kinds = reading.layer_types(fields, {"full_attention", "sliding_attention"}, lambda _: "full_attention")
    values: dict[str, Any] = {"layer_types": kinds}
    if fields.has("moe_layers_enum") and not fields.has("mlp_layer_types"):
        values["mlp_layer_types"] = _kinds_of_experts(fields)
    if not fields.has("per_layer_config"):
        heads = {"num_attention_heads": _heads_of_windows(fields)}
        values["per_layer_config"] = {str(at): heads for at, kind in enumerate(kinds) if kind == "sliding_attention"}
    if not fields.has("rope_parameters"):
        values["rope_parameters"] = {kind: _rope(fields, kinds.index(kind), kind) for kind in dict.fromkeys(kinds)}
    saved = replace(fields, values={**fields.values, **values})
    return saved.without("rope_scaling", "rope_theta", "partial_rotary_factors").with_defaults(rope_theta=10000.0)


def _without_mtp_layers(fields: Fields) -> dict[str, Any]:
    """Return the fields with a list, without its last entries, those of the layers of multi-token prediction."""
    count = reading.num_layers(fields)
    every = count + fields.integer("num_nextn_predict_layers", 0, 64, default=0)
    lists = {name: fields.values.get(name) for name in (*_LISTS, "partial_rotary_factors")}
    return {name: each[:count] for name, each in lists.items() if isinstance(each, list) and len(each) == every}


def _kinds_of_experts(fields: Fields) -> list[str]:
    """Return `mlp_layer_types` made of the numbers of layers with experts, a list or a text with commas."""
    given = fields.values["moe_layers_enum"]
    numbers = given.split(",") if isinstance(given, str) else given
    texts = [str(each).strip() for each in numbers] if isinstance(numbers, list) else [""]
    if not all(text.isdecimal() and len(text) < 10 for text in texts):  # int() refuses texts of thousands of digits
        raise fields.wrong("moe_layers_enum", given, "is not a list of numbers of layers")
    chosen = set(map(int, texts))
    return ["sparse" if layer in chosen else "dense" for layer in range(reading.num_layers(fields))]


def _heads_of_windows(fields: Fields) -> int:
    other, heads = fields.mapping("attention_other_setting"), fields.integer("num_attention_heads", 1, 1 << 16)
    if other is not None:
        heads = other.integer("num_attention_heads", 1, 1 << 16, default=heads)
    return fields.integer("num_sliding_attention_heads", 1, 1 << 16, default=heads)


def _rope(fields: Fields, layer: int, kind: str) -> dict[str, Any]:
    """Return the RoPE fields of one type of layers, the first of which is `layer`."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    for name, field in (("rope_theta", "rope_theta"), ("partial_rotary_factor", "partial_rotary_factors")):
        given = fields.values.get(field)
        if isinstance(given, list) and len(given) != reading.num_layers(fields):
            raise fields.wrong(field, given, "does not name all layers")
        if given is not None:
            rope[name] = given[layer] if isinstance(given, list) else given
    scaling = fields.mapping("rope_scaling") if kind == "full_attention" else None
    return rope if scaling is None else {**rope, **scaling.values}


def limits(fields: Fields, name: str) -> list[float | None]:
    """Return each layer's limit of gate and up; None: there is none, for which files have null or 0."""
    count, given = reading.num_layers(fields), fields.values.get(name)
    if given is None:
        return [None] * count
    if (
        not isinstance(given, list)
        or len(given) != count
        or not all(each is None or (type(each) in (int, float) and 0 <= each <= 1e6) for each in given)
    ):
        raise fields.wrong(name, given, f"is not {count} numbers or null, none above 1e+06")
    return [each or None for each in given]
