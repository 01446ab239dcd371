"""Makes the numbers of JSON schemas exact, which llguidance reads as 64-bit floats and writes with 16 digits.

Without this, an answer under `{"const": 9007199254740993}` was 9007199254740992, and one under `{"const":
0.30000000000000004}` was 0.3.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

_ENFORCED = frozenset({"const", "enum"})
_ROUNDED = {
    "minimum": ROUND_CEILING, "exclusiveMinimum": ROUND_CEILING, "maximum": ROUND_FLOOR, "exclusiveMaximum": ROUND_FLOOR
}  # fmt: skip
"""The keywords of bounds, and the direction in which a bound allows less."""
_DIGITS = 15
"""Every decimal number of so many digits is written as it was read."""
_LARGEST = 1 << 53
"""The integers up to here are exact."""
_MOST_MULTIPLES = 1000
_INT64 = (1 << 63) - 1
"""llguidance's integers end here, so this usual bound is exact too."""
_FARTHEST = (1 << 63) - 1024
"""llguidance refuses bounds that are farther from zero, but for integers that are less than one."""


class InexactNumberError(ValueError):
    """Raised for a number that an answer could not have exactly."""


def with_exact_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with bounds of its own that allow slightly less where they are not exact.

    InexactNumberError if a value of its `const` or `enum` is not exact.
    """
    for key in _ENFORCED & schema.keys():
        _check(schema[key])
    bounds = {key: _rounded(_near(schema, key), _ROUNDED[key]) for key in _ROUNDED.keys() & schema.keys()}
    return _with_exact_multiples({**schema, **bounds})


def _with_exact_multiples(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with an enum of the multiples of a fraction such as 0.1 between its bounds, if these are few.

    Validators divide binary fractions, by which 0.3 is no multiple of 0.1: such multiples are left out.
    """
    step, least, most = (schema.get(key) for key in ("multipleOf", "minimum", "maximum"))
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if any(kind not in ("number", "integer", "null") for kind in kinds):
        return schema
    if type(step) is not float or not _ENFORCED.isdisjoint(schema) or not all(map(_is_number, (least, most))):
        return schema
    exact = Decimal(repr(step))
    first, last = (
        int((Decimal(repr(bound)) / exact).to_integral_value(way))
        for bound, way in ((least, ROUND_CEILING), (most, ROUND_FLOOR))
    )
    if step <= 0 or Decimal(step) == exact or not 0 <= last - first < _MOST_MULTIPLES:
        return schema
    multiples = [float(exact * count) for count in range(first, last + 1)]
    null = [None] if "null" in kinds else []
    return {**schema, "enum": [*(each for each in multiples if (each / step).is_integer()), *null]}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _near(schema: dict[str, Any], key: str) -> Any:
    """Return a bound, or if it is too far from zero for llguidance, a nearer one that allows less."""
    bound, lower = schema[key], _ROUNDED[key] == ROUND_CEILING
    if type(bound) not in (int, float) or (schema.get("type") == "integer" and not lower):
        return bound
    return max(bound, -_FARTHEST) if lower else min(bound, _FARTHEST)


def _check(value: Any) -> None:
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(each)
    if not _is_exact(value):
        raise InexactNumberError(
            f"the number {json.dumps(value)[:100]} of a const or enum has too many digits: integers up to 2**53 and "
            f"{_DIGITS} digits are exact; give it as a string"
        )


def _is_exact(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return not isinstance(value, float) or not math.isfinite(value) or float(f"{value:.{_DIGITS}g}") == value


def _rounded(value: Any, direction: str) -> Any:
    """Return a bound, or a near number that is exact, in the direction in which the bound allows less."""
    if _is_exact(value) or value == _INT64:
        return value
    if isinstance(value, float):
        near = float(Context(prec=_DIGITS, rounding=direction).create_decimal(repr(value)))
        return near if math.isfinite(near) else value
    up = direction == ROUND_CEILING
    try:
        near = float(value)
        if near < value if up else near > value:
            near = math.nextafter(near, math.inf if up else -math.inf)
        return int(near)
    except OverflowError:
        return value  # llguidance refuses it
