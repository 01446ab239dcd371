"""Reads latent attention (MLA), which several families have; errors are ModelLoadError."""

from __future__ import annotations

import math
from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.rope import rope
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LatentAttentionSpec, NormSpec


def attention(fields: Fields, *, interleaved: bool) -> LatentAttentionSpec:
    """Return latent attention by DeepSeek's names of fields; `interleaved`: whether neighbouring dimensions rotate."""
    plain_dim, rotary_dim = (fields.integer(f"qk_{part}_head_dim", 1, 1024) for part in ("nope", "rope"))
    if rotary_dim % 2:
        raise fields.wrong("qk_rope_head_dim", rotary_dim, "is odd, and rotary embeddings rotate pairs")
    if (own := fields.integer("head_dim", 1, 1 << 16, default=rotary_dim)) <= 2 < rotary_dim:
        raise fields.wrong("head_dim", own, f"is not qk_rope_head_dim {rotary_dim}, the dimensions that rotate")
    heads = fields.integer("num_attention_heads", 1, 1 << 12)
    rotated = rope(fields, reading.max_position(fields), rotary_dim)
    return LatentAttentionSpec(
        num_heads=heads,
        query_rank=fields.integer("q_lora_rank", 1, 1 << 16) if fields.has("q_lora_rank") else None,
        latent=fields.integer("kv_lora_rank", 1, 1 << 16),
        plain_dim=plain_dim,
        rotary_dim=rotary_dim,
        value_dim=fields.integer("v_head_dim", 1, 1024, default=reading.hidden_size(fields) // heads),
        scale=(plain_dim + rotary_dim) ** -0.5 * _mscale(fields) ** 2,
        rope=None if rotated is None else replace(rotated, interleaved=interleaved),
        norm=NormSpec(1e-6),
        bias=fields.boolean("attention_bias", False),
    )


def _mscale(fields: Fields) -> float:
    """Return the factor that scaled RoPE puts on query and on key, 0.1 mscale_all_dim ln(factor) + 1."""
    values = fields.mapping("rope_parameters") or fields.mapping("rope_scaling")
    if values is None or values.text("rope_type", default=values.values.get("type", "default")) == "default":
        return 1.0
    of_all = values.number("mscale_all_dim", 0, 1e3, default=0.0)
    factor = values.number("factor", 1e-3, 1e6) if of_all else 1.0
    return 0.1 * of_all * math.log(factor) + 1 if of_all and factor > 1 else 1.0
