"""Writes `contains` of JSON schemas, which llguidance refuses by name, as an `anyOf` of the places of the items."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from math import comb
from typing import Any

from octavo_engine.json_schema.negations import without_negation

_KEYWORDS = frozenset({"contains", "minContains", "maxContains"})
_BESIDE = frozenset({"prefixItems", "allOf", "anyOf"})
"""Keywords whose own schemas of items, or places, would have to be joined with those of `contains`."""
_OF_ITEMS = frozenset({"type", "items", "additionalItems", "minItems"})
"""Keywords that each list has anew. Its first items are a list in `items`, which llguidance reads in every draft: it
has no `prefixItems` in schemas whose `$schema` is older than 2020-12."""
_MOST_PLACES = 8
_CHARACTERS = 64
"""Characters of a list beside the schemas of its items."""
_MOST_CHARACTERS, _MOST_OF_ALL = 1 << 14, 1 << 17
"""The most characters of all places, each of which has a copy of the schema of every item before it, for one list and
for all lists of a whole schema."""


class ContainedItems:
    """Writes the keyword in one whole schema; the items that a list must contain are among its first eight."""

    def __init__(self, root: Any) -> None:
        """`root` is the whole schema. In drafts up to 7, `minContains` and `maxContains` say nothing."""
        self._counts = not isinstance(root, Mapping) or "draft-0" not in str(root.get("$schema"))
        self._left = _MOST_OF_ALL

    def placed(self, schema: dict[str, Any]) -> Any:
        """Return a schema of lists that has no `contains`; one that cannot be written so is returned as it is.

        False if no list is long enough.
        """
        others = {key: value for key, value in schema.items() if key not in _KEYWORDS}
        counts = schema if self._counts else {}
        least, most = counts.get("minContains", 1), counts.get("maxContains")
        if "contains" not in schema or (least == 0 and most is None):
            return others
        shortest, longest = schema.get("minItems", 0), schema.get("maxItems", _MOST_PLACES)
        numbers, items = (least, least if most is None else most, shortest, longest), schema.get("items", {})
        if schema.get("type") != "array" or _BESIDE & schema.keys() or not isinstance(items, Mapping):
            return schema
        if any(type(number) is not int or number < 0 for number in numbers) or least > _MOST_PLACES:
            return schema
        item, other = _of_both(items, schema["contains"]), items
        if most is not None:
            if "not" in items:
                return schema
            other = without_negation({**items, "not": schema["contains"]})
        places, sizes = min(longest, _MOST_PLACES), range(least, min(numbers[1], longest, _MOST_PLACES) + 1)
        if (isinstance(other, Mapping) and "not" in other) or not self._has_room(places, sizes, item, other):
            return schema
        own = {key: value for key, value in others.items() if key in ("maxItems", "uniqueItems")}
        outside = {key: value for key, value in others.items() if key not in _OF_ITEMS | own.keys()}
        first = [
            [item if place in at else other for place in range(max(at, default=-1) + 1)]
            for size in sizes
            for at in combinations(range(places), size)
        ]
        lists = [{"items": each, "additionalItems": other, "minItems": max(shortest, len(each))} for each in first]
        return {**outside, "anyOf": [{"type": "array", **own, **each} for each in lists]} if lists else False

    def _has_room(self, places: int, sizes: range, item: Any, other: Any) -> bool:
        """Count the characters of all lists that have so many items of one kind at so many places."""
        one, rest = len(json.dumps(item)), len(json.dumps(other))
        characters = sum(
            comb(last, size - 1) * (_CHARACTERS + size * one + (last + 2 - size) * rest)
            for size in sizes
            if size
            for last in range(size - 1, places)
        )
        if characters > min(_MOST_CHARACTERS, self._left):
            return False
        self._left -= characters
        return True


def _of_both(items: Mapping[str, Any], contained: Any) -> Any:
    if contained in (True, {}):
        return items
    return {"allOf": [items, contained]} if items and contained is not False else contained
