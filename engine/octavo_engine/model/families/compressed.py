"""Reads DeepSeek V4's attention: to a window of tokens, and to compressed keys for the tokens before it.

Fields may have the names of published files or those that transformers writes. Errors are ModelLoadError.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from octavo_engine.model.families import reading
from octavo_engine.model.families.rope import rope
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import CompressedAttentionSpec, CompressorSpec, IndexerSpec, RopeSpec

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_KINDS = {0: _SLIDING, 4: _SPARSE, 128: _HEAVY}
"""The types of layers by the `compress_ratios` of published files: the tokens of one compressed key, 0 for none."""
_OLD_RATES = {_SPARSE: "compress_rate_csa", _HEAVY: "compress_rate_hca"}
_SPARSE_ONES = range(3, 1 << 16, 2)
"""The layers that are sparse where no field states the type of each."""
_ROPES = ("default", "linear", "llama3", "yarn")


def attentions(fields: Fields) -> list[CompressedAttentionSpec]:
    """Return the attention of each layer."""
    kinds = _kinds(fields)
    of_kind = {kind: _attention(fields, kind) for kind in dict.fromkeys(kinds)}
    return [of_kind[kind] for kind in kinds]


def _kinds(fields: Fields) -> list[str]:
    """Return the type of each layer; by default the first three are heavily compressed, then every second one."""
    count, ratios = reading.num_layers(fields), fields.integers("compress_ratios")
    if fields.has("layer_types") or not ratios:
        return reading.layer_types(
            fields, set(_KINDS.values()), lambda layer: _SPARSE if layer in _SPARSE_ONES else _HEAVY
        )
    if len(ratios) < count or set(ratios) - set(_KINDS):
        raise fields.wrong("compress_ratios", list(ratios), f"is not {count} times 0, 4 or 128")
    return [_KINDS[ratio] for ratio in ratios[:count]]


def _attention(fields: Fields, kind: str) -> CompressedAttentionSpec:
    heads, size = fields.integer("num_attention_heads", 1, 1 << 12), fields.integer("head_dim", 2, 1024)
    groups = fields.integer("o_groups", 1, heads)
    if heads % groups:
        raise fields.wrong("o_groups", groups, f"does not divide num_attention_heads {heads}")
    angles, rotary_dim = _rope(fields, "main" if kind == _SLIDING else "compress", size)
    return CompressedAttentionSpec(
        num_heads=heads,
        head_dim=size,
        query_rank=fields.integer("q_lora_rank", 1, 1 << 16),
        rope=angles,
        rotary_dim=rotary_dim,
        norm=reading.rms_norm(fields),
        window=fields.integer("sliding_window", 1, 1 << 30),
        output_groups=groups,
        output_rank=fields.integer("o_lora_rank", 1, 1 << 16),
        compressor=None if kind == _SLIDING else _compressor(fields, kind, rotary_dim),
    )


def _compressor(fields: Fields, kind: str, rotary_dim: int) -> CompressorSpec:
    rates = fields.mapping("compress_rates") or Fields(fields.origin, {number: rate for rate, number in _KINDS.items()})
    old = _OLD_RATES[kind]
    rate = fields.integer(old, 1, 1 << 16) if fields.has(old) else rates.integer(kind, 1, 1 << 16)
    if kind == _HEAVY:
        return CompressorSpec(rate=rate, overlapping=False)
    indexer = IndexerSpec(
        num_heads=fields.integer("index_n_heads", 1, 1 << 12),
        size=fields.integer("index_head_dim", rotary_dim, 1024),
        kept=fields.integer("index_topk", 1, 1 << 30),
    )
    return CompressorSpec(rate=rate, overlapping=True, indexer=indexer)


def _rope(fields: Fields, label: str, head_dim: int) -> tuple[RopeSpec, int]:
    """Return the RoPE of layers with compressed keys (`compress`) or without (`main`), and its number of dimensions."""
    values = _rope_values(fields, label, head_dim)
    if (kind := values.text("rope_type", default=values.values.get("type", "default"))) not in _ROPES:
        raise values.wrong("rope_type", kind, f"is not supported; supported: {', '.join(_ROPES)}")
    share = values.number("partial_rotary_factor", 0, 1, default=1.0)
    rotary_dim = int(head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2:
        raise values.wrong("partial_rotary_factor", share, f"rotates {rotary_dim} of {head_dim} dimensions, not pairs")
    own = fields.without("partial_rotary_factor", "rope_parameters", "rope_scaling")
    # transformers reads YaRN's `truncate` beside `main` and `compress`, where its own configuration never leaves it.
    own = own.with_defaults(rope_parameters=values.without("partial_rotary_factor", "truncate").values)
    return cast("RopeSpec", rope(own, reading.max_position(fields), rotary_dim)), rotary_dim


def _rope_values(fields: Fields, label: str, head_dim: int) -> Fields:
    """Return the RoPE fields of `label`, as transformers writes them or makes them of a published file's fields."""
    given = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or Fields(fields.origin, {})
    if (main := given.mapping("main")) is not None and (compress := given.mapping("compress")) is not None:
        return main if label == "main" else compress
    share = fields.integer("qk_rope_head_dim", 2, head_dim, default=head_dim // 8) / head_dim
    values = {"partial_rotary_factor": fields.number("partial_rotary_factor", 0, 1, default=share)}
    if label == "main":
        return replace(given, values={**values, "rope_theta": fields.values["rope_theta"]})
    theta = fields.values["compress_rope_theta"]
    return replace(given, values={"attention_factor": 1.0, **given.values, **values, "rope_theta": theta})
