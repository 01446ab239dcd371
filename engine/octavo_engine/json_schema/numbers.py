"""Makes the numbers of JSON schemas exact, which llguidance reads as 64-bit floats and writes with 16 digits.

Without this, an answer under `{"const": 9007199254740993}` was 9007199254740992, and one under `{"const":
0.30000000000000004}` was 0.3.
"""

from __future__ import annotations

import json
import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
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
_INT64 = (1 << 63) - 1
"""llguidance's integers end here, so this usual bound is exact too."""


class InexactNumberError(ValueError):
    """Raised for a number that an answer could not have exactly."""


def with_exact_numbers(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with bounds of its own that allow slightly less where they are not exact.

    InexactNumberError if a value of its `const` or `enum` is not exact.
    """
    for key in _ENFORCED & schema.keys():
        _check(schema[key])
    bounds = {key: _rounded(schema[key], _ROUNDED[key]) for key in _ROUNDED.keys() & schema.keys()}
    return {**schema, **bounds}


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
