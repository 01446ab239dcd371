"""Reads rotary position embeddings (RoPE) from config.json."""

from __future__ import annotations

import math

from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import RopeSpec

_KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
_OLDER_NAMES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
"""Of kinds in the first Phi-3, which also calls LongRoPE yarn, in Qwen2-VL and in HunYuan-VL: a text's tokens have one
position each, not three or four."""
_LAYER_TYPES = ("full_attention", "sliding_attention")


def rope(
    fields: Fields, max_position: int, head_dim: int, *, partial: bool = False, layer_type: str | None = None
) -> RopeSpec | None:
    """Return the RoPE of a layer; None: its type has none.

    Transformers 5 writes all fields into `rope_parameters`; before, `rope_theta` stood beside `rope_scaling`.
    `partial`: whether the family may rotate only the first dimensions of a head. `layer_type`: the layer's type, in
    families where each type may have a RoPE of its own.
    """
    values = _values(fields, layer_type)
    if values is None:
        return None
    theta = _theta(fields, values, layer_type)
    kind = values.text("rope_type", default=values.values.get("type", "default"))
    kind = "longrope" if kind == "yarn" and values.has("short_factor") else _OLDER_NAMES.get(kind, kind)
    if kind not in (*_KINDS, "factors"):
        raise values.wrong("rope_type", kind, f"is not supported; supported: {', '.join(_KINDS)}")
    if head_dim % 2 and (kind == "proportional" or not partial or _share(fields, values) == 1):
        raise fields.wrong("head_dim", head_dim, "is odd, and rotary embeddings rotate pairs")
    if kind == "proportional":
        share = _share(fields, values)
        return RopeSpec(theta, kind, values.number("factor", 1e-3, 1e6, default=1.0), proportion=share)
    rotary_dim = _rotary_dim(fields, values, head_dim, partial=partial)
    if kind == "longrope":
        return _longrope(fields, values, theta, max_position, head_dim, rotary_dim)
    if kind == "llama3":
        return _llama3(values, theta, _original(fields, values, max_position), rotary_dim)
    if kind == "yarn":
        outer = fields.mapping("rope_parameters") or (values if layer_type is None else Fields(fields.origin, {}))
        return _yarn(values, outer, theta, max_position, _original(fields, values, max_position), rotary_dim)
    return _simple_rope(values, kind, theta, head_dim, rotary_dim)


def _simple_rope(values: Fields, kind: str, theta: float, head_dim: int, rotary_dim: int | None) -> RopeSpec:
    """Return a RoPE of the kind `default`, `linear`, `dynamic` or `factors`."""
    size = rotary_dim or head_dim
    if kind == "linear":
        return RopeSpec(theta, kind, values.number("factor", 1e-3, 1e6), rotary_dim=rotary_dim)
    if kind == "factors":
        return RopeSpec(theta, kind, factors=_factors(values, "factors", size), rotary_dim=rotary_dim)
    return RopeSpec(_dynamic_theta(values, theta, size) if kind == "dynamic" else theta, rotary_dim=rotary_dim)


def _values(fields: Fields, layer_type: str | None) -> Fields | None:
    """Return the fields about the RoPE of one type of layers; None: that type has none.

    Where types differ, `rope_scaling`, the older field, is about full attention alone.
    """
    nothing = Fields(fields.origin, {})
    parameters = fields.mapping("rope_parameters")
    if parameters is None:
        return (fields.mapping("rope_scaling") or nothing) if layer_type in (None, "full_attention") else nothing
    nested = [name for name in _LAYER_TYPES if name in parameters.values]
    if not nested:
        return parameters
    if layer_type is None:
        raise parameters.wrong(nested[0], parameters.values[nested[0]], "is not supported: all layers rotate alike")
    if layer_type in parameters.values and parameters.values[layer_type] is None:
        return None
    return parameters.mapping(layer_type) or nothing


def _theta(fields: Fields, values: Fields, layer_type: str | None) -> float:
    """Read the base of the angles; layers with a window may have one of their own in `rope_local_base_freq`."""
    if values.has("rope_theta"):
        return values.number("rope_theta", 1e-3, 1e12)
    local = layer_type == "sliding_attention" and fields.has("rope_local_base_freq")
    return fields.number("rope_local_base_freq" if local else "rope_theta", 1e-3, 1e12)


def _dynamic_theta(values: Fields, theta: float, size: int) -> float:
    """Return the base for `dynamic`, NTK-aware scaling: as it is, since scaling begins beyond
    `max_position_embeddings`, the longest context that is computed here. HunYuan's `alpha` changes it for all lengths.
    """
    values.number("factor", 1e-3, 1e6, default=1.0)
    alpha = values.number("alpha", 0, 1e6, default=0.0)
    if alpha and size == 2:
        raise values.wrong("alpha", alpha, "is not supported for heads of which one pair rotates")
    return theta * alpha ** (size / (size - 2)) if alpha else theta


def _share(fields: Fields, values: Fields) -> float:
    """Return the share of a head that rotates: in the object about RoPE, or in older files beside it."""
    holder = values if values.has("partial_rotary_factor") else fields
    return holder.number("partial_rotary_factor", 0, 1, default=1.0)


def _rotary_dim(fields: Fields, values: Fields, head_dim: int, *, partial: bool) -> int | None:
    """Return how many dimensions of a head are rotated; None: all."""
    share = _share(fields, values)
    if share == 1:
        return None
    rotary_dim = int(head_dim * share)
    if not partial:
        raise fields.wrong("partial_rotary_factor", share, "is not supported, only 1")
    if rotary_dim < 1:
        raise fields.wrong("partial_rotary_factor", share, f"rotates none of {head_dim} dimensions")
    return rotary_dim


def _original(fields: Fields, values: Fields, max_position: int) -> int:
    """Read the context length that is scaled; a field beside those of RoPE takes precedence (Phi-3)."""
    name = "original_max_position_embeddings"
    return (fields if fields.has(name) else values).integer(name, 2, 1 << 30, default=max_position)


def _llama3(values: Fields, theta: float, original: int, rotary_dim: int | None) -> RopeSpec:
    """Read Llama 3.1's RoPE, in which slow pairs are slower by `factor`."""
    low, high = values.number("low_freq_factor", 1e-6, 1e6), values.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise values.wrong("high_freq_factor", high, f"is not above low_freq_factor {low:g}")
    factor = values.number("factor", 1e-3, 1e6)
    return RopeSpec(theta, "llama3", factor, low, high, original, rotary_dim=rotary_dim)


def _factors(values: Fields, name: str, size: int) -> tuple[float, ...]:
    factors, pairs = values.values.get(name), (size + 1) // 2
    if (
        not isinstance(factors, list)
        or len(factors) != pairs
        or not all(isinstance(factor, int | float) and 0 < factor < 1e6 for factor in factors)
    ):
        raise values.wrong(name, factors, f"is not {pairs} positive numbers")
    return tuple(map(float, factors))


def _longrope(
    fields: Fields, values: Fields, theta: float, max_position: int, head_dim: int, rotary_dim: int | None
) -> RopeSpec:
    """Read LongRoPE (arXiv 2402.13753): a divisor for each pair, and others for contexts beyond the original length."""
    size, original = rotary_dim or head_dim, _original(fields, values, max_position)
    factor = values.number("factor", 1e-3, 1e6, default=max_position / original)
    attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    attention = values.number("attention_factor", 1e-3, 1e3, default=attention)
    return RopeSpec(
        theta,
        "longrope",
        factor,
        original_max_position=original,
        factors=_factors(values, "short_factor", size),
        attention_factor=values.number("short_mscale", 1e-3, 1e3, default=attention),
        long_attention_factor=values.number("long_mscale", 1e-3, 1e3, default=attention),
        long_factors=_factors(values, "long_factor", size),
        rotary_dim=rotary_dim,
    )


def _yarn(
    values: Fields, outer: Fields, theta: float, max_position: int, original: int, rotary_dim: int | None
) -> RopeSpec:
    """Read YaRN (arXiv 2309.00071).

    transformers reads `truncate` in `outer`, the whole object about RoPE, also where layer types have their own in it.
    """
    slow = values.number("beta_slow", 0, 1e6, default=1.0) or 1.0
    fast = values.number("beta_fast", 0, 1e6, default=32.0) or 32.0
    if fast <= slow:
        raise values.wrong("beta_fast", fast, f"is not above beta_slow {slow:g}")
    if theta <= 1:
        raise values.wrong("rope_theta", theta, "is not above 1")
    if rotary_dim is not None and rotary_dim % 2:
        raise values.wrong("partial_rotary_factor", rotary_dim, "dimensions are rotated, which are not pairs for YaRN")
    factor = values.number("factor", 1e-3, 1e6, default=max_position / original)
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_max_position=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=outer.boolean("truncate", True),
        attention_factor=values.number("attention_factor", 1e-3, 1e3, default=_yarn_attention_factor(values, factor)),
        rotary_dim=rotary_dim,
    )


def _yarn_attention_factor(values: Fields, factor: float) -> float:
    """Return 0.1 ln(factor) + 1; with `mscale` and `mscale_all_dim` the ratio of two such terms (DeepSeek)."""

    def term(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1

    scales = [values.number(name, 0, 1e3, default=0.0) for name in ("mscale", "mscale_all_dim")]
    return term(scales[0]) / term(scales[1]) if all(scales) else term(1.0)
