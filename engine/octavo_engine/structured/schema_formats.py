"""Narrows formats of JSON schemas (dates, times, host names) for which llguidance allows values that readers reject.

llguidance allows a year 0000, a February 29th in every year, a second 60, any number of digits after the seconds, and
host names of any length. Each such format is replaced by a pattern or a bound that allows less: all of its values are
valid under the format, and Python's datetime can read the dates and times.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_YEAR = r"([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_LATER_DAYS = r"((0[13578]|1[02])-(29|30|31)|(0[469]|11)-(29|30))"
_DATE = rf"({_YEAR}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|{_LATER_DAYS})|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR_MINUTE})"
_EXACT: Mapping[str, Mapping[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}T{_TIME}$"},
    "hostname": {"format": "hostname", "maxLength": 253},
}
"""The keywords that replace each format."""
VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are JSON that may look like a schema."""
NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose values are objects of schemas by name: a property may be called `format` or `const`."""


def with_exact_formats(schema: Any) -> Any:
    """Return the same schema with narrower formats."""
    if isinstance(schema, list):
        return [with_exact_formats(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _of_keyword(key, value) for key, value in schema.items()}
    kind = schema.get("format")
    if not isinstance(kind, str) or (exact := _EXACT.get(kind)) is None:
        return found
    del found["format"]
    if not exact.keys() & found.keys():
        return {**found, **exact}
    others = found.get("allOf", [])
    return {**found, "allOf": [*others, exact]} if isinstance(others, list) else schema  # llguidance refuses it


def _of_keyword(key: str, value: Any) -> Any:
    if key in VALUES:
        return value
    if key in NAMED and isinstance(value, dict):
        return {name: with_exact_formats(each) for name, each in value.items()}
    return with_exact_formats(value)
