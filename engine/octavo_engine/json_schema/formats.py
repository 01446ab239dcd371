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


def with_exact_format(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with a narrower format of its own; the schemas in it are left as they are."""
    kind = schema.get("format")
    if not isinstance(kind, str) or (exact := _EXACT.get(kind)) is None:
        return schema
    others = {key: value for key, value in schema.items() if key != "format"}
    if not exact.keys() & others.keys():
        return {**others, **exact}
    all_of = others.get("allOf", [])
    return {**others, "allOf": [*all_of, exact]} if isinstance(all_of, list) else schema  # llguidance refuses it
