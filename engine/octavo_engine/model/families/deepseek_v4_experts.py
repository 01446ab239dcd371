"""Reads the experts of DeepSeek V4, of which every layer has some, beside a shared one.

In the first layers a table names the experts of each token (`hash_moe`); in the others a router chooses them.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import MoESpec, RouterSpec, SharedExpertSpec

_SCORES: dict[str, Any] = {"sqrtsoftplus": "root of softplus", "sigmoid": "sigmoid"}
_BY_SCORES, _BY_TOKEN = "moe", "hash_moe"


def experts(fields: Fields) -> list[MoESpec]:
    """Return the experts of each layer; by default the token chooses those of the first three layers."""
    first = fields.integer("num_hash_layers", 0, 4096, default=3)
    kinds = reading.layer_types(
        fields, {_BY_SCORES, _BY_TOKEN}, lambda layer: _BY_TOKEN if layer < first else _BY_SCORES, "mlp_layer_types"
    )
    reading.require_silu(fields)
    if (scores := fields.text("scoring_func")) not in _SCORES:
        raise fields.wrong("scoring_func", scores, f"is not supported; supported: {', '.join(_SCORES)}")
    if fields.text("expert_dtype", default="") == "fp4":
        raise fields.wrong("expert_dtype", "fp4", "is not supported")
    return [_of_kind(fields, by_token=kind == _BY_TOKEN) for kind in kinds]


def _of_kind(fields: Fields, *, by_token: bool) -> MoESpec:
    gate: dict[str, Any] = {"limit": fields.number("swiglu_limit", 1e-3, 1e6), "up_offset": 0.0}
    size, bias = reading.intermediate_size(fields, "moe_intermediate_size"), fields.boolean("mlp_bias", False)
    shared = SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=size, bias=bias, output_bias=bias, **gate))
    router = RouterSpec(
        scores=_SCORES[fields.text("scoring_func")],
        table=fields.integer("vocab_size", 1, 1 << 26) if by_token else None,
        correction_bias=not by_token,
        renormalize=True,
        sum_offset=1e-20,
        scale=reading.scale(fields, "routed_scaling_factor"),
    )
    return mixtures.experts(fields, router, count="n_routed_experts", shared=shared, **gate)
