"""Writes `contains` of JSON schemas, which llguidance refuses by name, as an `anyOf` of the places of the item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_KEYWORDS = frozenset({"contains", "minContains", "maxContains"})
_MOST_PLACES = 8
_MOST_CHARACTERS = 1 << 14
"""The most characters of all places, each of which has a copy of the schema of every item before it."""


def without_contains(schema: dict[str, Any]) -> Any:
    """Return a schema of lists that has no `contains`; one whose `contains` cannot be written so is returned as it is.

    False if no list is long enough. The item that a list must contain is among its first eight.
    """
    if "contains" not in schema or schema.get("minContains", 1) == 0:
        return schema if "maxContains" in schema else {k: v for k, v in schema.items() if k not in _KEYWORDS}
    if schema.get("type") != "array" or schema.get("minContains", 1) != 1 or "maxContains" in schema:
        return schema
    most, least, items = schema.get("maxItems", _MOST_PLACES), schema.get("minItems", 0), schema.get("items", {})
    if not (type(most) is type(least) is int) or not isinstance(items, Mapping) or "prefixItems" in schema:
        return schema
    others = {key: value for key, value in schema.items() if key not in _KEYWORDS}
    item = _of_both(items, schema["contains"])
    places = [
        {"type": "array", "prefixItems": [*[items] * at, item], "items": items, "minItems": max(least, at + 1)}
        for at in range(min(most, _MOST_PLACES))
    ]
    if "allOf" in schema or "anyOf" in schema or len(json.dumps(places)) > _MOST_CHARACTERS:
        return schema
    own = {key: value for key, value in others.items() if key in ("maxItems", "uniqueItems")}
    outside = {key: value for key, value in others.items() if key not in ("type", "items", "minItems", *own)}
    return {**outside, "anyOf": [{**own, **place} for place in places]} if places else False


def _of_both(items: Mapping[str, Any], contained: Any) -> Any:
    if contained in (True, {}):
        return items
    return {"allOf": [items, contained]} if items and contained is not False else contained
