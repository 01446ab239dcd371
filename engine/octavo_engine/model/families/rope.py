"""Rotary position embeddings as config.json says them."""

from __future__ import annotations

import math

from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import RopeSpec

_KINDS = ("default", "linear", "llama3", "yarn", "longrope")


def rope(fields: Fields, max_position: int, head_dim: int, *, partial: bool = False) -> RopeSpec:
    """Transformers 5 puts all in `rope_parameters`; before, `rope_theta` stood beside `rope_scaling`.

    `partial`: whether the family may rotate only the first dimensions of a head.
    """
    values = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or Fields(fields.origin, {})
    theta = (values if values.has("rope_theta") else fields).number("rope_theta", 1e-3, 1e12)
    rotary_dim = _rotary_dim(fields, values, head_dim, partial=partial)
    kind = values.text("rope_type", default=values.values.get("type", "default"))
    size = rotary_dim or head_dim
    if kind == "default":
        return RopeSpec(theta, rotary_dim=rotary_dim)
    if kind == "factors":
        return RopeSpec(theta, kind, factors=_factors(values, "factors", size), rotary_dim=rotary_dim)
    if kind not in _KINDS:
        raise values.wrong("rope_type", kind, f"is not supported; supported: {', '.join(_KINDS)}")
    if kind == "longrope":
        return _longrope(fields, values, theta, max_position, head_dim, rotary_dim)
    factor = values.number("factor", 1e-3, 1e6)
    if kind == "linear":
        return RopeSpec(theta, kind, factor, rotary_dim=rotary_dim)
    if kind == "yarn":
        return _yarn(values, theta, factor, rotary_dim)
    low, high = values.number("low_freq_factor", 1e-6, 1e6), values.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise values.wrong("high_freq_factor", high, f"is not above low_freq_factor {low:g}")
    original = values.integer("original_max_position_embeddings", 1, 1 << 30, default=max_position)
    return RopeSpec(theta, kind, factor, low, high, original, rotary_dim=rotary_dim)


def _rotary_dim(fields: Fields, values: Fields, head_dim: int, *, partial: bool) -> int | None:
    """How many dimensions of a head are rotated; None: all."""
    holder = values if values.has("partial_rotary_factor") else fields
    share = holder.number("partial_rotary_factor", 0, 1, default=1.0)
    if share == 1:
        return None
    rotary_dim = int(head_dim * share)
    if not partial:
        raise fields.wrong("partial_rotary_factor", share, "is not supported, only 1")
    if rotary_dim < 2 or rotary_dim % 2:
        raise fields.wrong("partial_rotary_factor", share, f"rotates {rotary_dim} of {head_dim} dimensions, not pairs")
    return rotary_dim


def _factors(values: Fields, name: str, size: int) -> tuple[float, ...]:
    factors = values.values.get(name)
    if (
        not isinstance(factors, list)
        or len(factors) != size // 2
        or not all(isinstance(factor, int | float) and 0 < factor < 1e6 for factor in factors)
    ):
        raise values.wrong(name, factors, f"is not {size // 2} positive numbers")
    return tuple(map(float, factors))


def _longrope(
    fields: Fields, values: Fields, theta: float, max_position: int, head_dim: int, rotary_dim: int | None
) -> RopeSpec:
    """LongRoPE (arXiv 2402.13753): a divisor for each pair, others for contexts beyond the original one."""
    size, name = rotary_dim or head_dim, "original_max_position_embeddings"
    original = (values if values.has(name) else fields).integer(name, 2, 1 << 30, default=max_position)
    factor = values.number("factor", 1e-3, 1e6, default=max_position / original)
    attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeSpec(
        theta,
        "longrope",
        factor,
        original_max_position=original,
        factors=_factors(values, "short_factor", size),
        attention_factor=values.number("attention_factor", 1e-3, 1e3, default=attention),
        long_factors=_factors(values, "long_factor", size),
        rotary_dim=rotary_dim,
    )


def _yarn(values: Fields, theta: float, factor: float, rotary_dim: int | None) -> RopeSpec:
    """YaRN (arXiv 2309.00071); its attention factor is 0.1 ln(factor) + 1 unless one is given."""
    for name in ("mscale", "mscale_all_dim"):
        if values.has(name):
            raise values.wrong(name, values.values[name], "is not supported")
    slow = values.number("beta_slow", 1e-6, 1e6, default=1.0)
    fast = values.number("beta_fast", 1e-6, 1e6, default=32.0)
    if fast <= slow:
        raise values.wrong("beta_fast", fast, f"is not above beta_slow {slow:g}")
    if theta <= 1:
        raise values.wrong("rope_theta", theta, "is not above 1")
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_max_position=values.integer("original_max_position_embeddings", 1, 1 << 30),
        beta_fast=fast,
        beta_slow=slow,
        truncate=values.boolean("truncate", True),
        attention_factor=values.number("attention_factor", 1e-3, 1e3, default=0.1 * math.log(max(1.0, factor)) + 1),
        rotary_dim=rotary_dim,
    )
