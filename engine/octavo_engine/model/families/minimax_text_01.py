"""MiniMax Text 01 and M1 (arXiv 2506.13585) under their repositories' names of fields, with half of each head rotated.

Tensors have the names that transformers' class has (minimax.py).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.minimax import MINIMAX
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, LayerSpec, ModelSpec

_KINDS = ("linear_attention", "full_attention")


def _read(architecture: str, fields: Fields) -> ModelSpec:
    if not fields.boolean("postnorm", False):  # MiniMax adds results to what their norms gave
        raise fields.wrong("postnorm", False, "is not supported")
    if fields.integer("shared_intermediate_size", 0, 1 << 22, default=0):
        raise fields.wrong("shared_intermediate_size", fields.values["shared_intermediate_size"], "is not supported")
    kinds = fields.integers("attn_type_list")
    if set(kinds) - {0, 1}:
        raise fields.wrong("attn_type_list", kinds, "has other numbers than 0 (linear attention) and 1 (full)")
    spec = MINIMAX.read(replace(fields, values={**fields.values, "layer_types": [_KINDS[kind] for kind in kinds]}))
    layers = tuple(_partly_rotated(fields, layer) for layer in spec.layers)
    return replace(spec, architecture=architecture, layers=layers)


def _partly_rotated(fields: Fields, layer: LayerSpec) -> LayerSpec:
    mixer = layer.mixer
    if not isinstance(mixer, AttentionSpec):
        return layer
    rotated = fields.integer("rotary_dim", 2, mixer.head_dim, default=mixer.head_dim)
    return replace(layer, mixer=reading.with_rope(mixer, rotary_dim=rotated))


_FACTORS = {
    f"layernorm_{there}_{factor}": f"{here}_{factor}_factor"
    for there, here in (("full_attention", "full_attn"), ("linear_attention", "linear_attn"), ("mlp", "mlp"))
    for factor in ("alpha", "beta")
}
MINIMAX_PUBLISHED = tuple(
    Family(
        architecture=architecture,
        model_type=model_type,
        read=partial(_read, architecture),
        aliases=_FACTORS,
        defaults=MINIMAX.defaults,
    )
    for architecture, model_type in (
        ("MiniMaxText01ForCausalLM", "minimax_text_01"),
        ("MiniMaxM1ForCausalLM", "minimax_m1"),
    )
)
