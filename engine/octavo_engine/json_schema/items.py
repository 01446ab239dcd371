"""Leaves out the `uniqueItems` of JSON schemas where it forbids nothing; elsewhere llguidance refuses it by name."""

from __future__ import annotations

from typing import Any

_UNIQUE = "uniqueItems"


def without_idle_uniqueness(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows the same, without its own `uniqueItems` if that forbids nothing.

    It forbids nothing if it is false, if a list may have one item only, and if the schema allows no list.
    """
    unique, kind, most = schema.get(_UNIQUE), schema.get("type", "array"), schema.get("maxItems")
    kinds = [kind] if isinstance(kind, str) else kind
    short = isinstance(most, int) and most <= 1
    if unique is not False and not (unique is True and (short or (isinstance(kinds, list) and "array" not in kinds))):
        return schema
    return {key: value for key, value in schema.items() if key != _UNIQUE}
