"""Rewrites `uniqueItems` and `unevaluatedItems` in JSON schemas, which llguidance refuses by name.

Items are unique in lists that can all be listed, as they have few values.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from math import perm
from typing import Any

from octavo_engine.json_schema.walk import ANNOTATIONS, referred

_UNIQUE = "uniqueItems"
_KEPT = ANNOTATIONS | {"$id", "$schema", "$defs", "definitions"}
_BESIDE = _KEPT | {_UNIQUE, "type", "items", "minItems", "maxItems"}
_KINDS = {str: ("string",), bool: ("boolean",), int: ("integer", "number"), type(None): ("null",)}
"""The types of the values whose equality is that of Python's values of the same type, by their names in schemas."""
_MOST_CHARACTERS = 1 << 17
"""The most characters of all lists that are made for a schema; they take about 0.2 s to compile. There are 326 lists of
up to five different values, and with names of 20 characters they have about 40,000."""
_UNEVALUATED = "unevaluatedItems"
_EVALUATING = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "contains", "$ref"})
"""Keywords whose schemas may evaluate items of the same list; `$dynamicRef` is refused anyway."""
_MOST_VALUES, _LONGEST_LIST = 181, 7
"""The most values, and the longest lists, that can have so few characters. The lists of others are not even counted, as
that of 8,000 texts took 8 s."""


def with_evaluated_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that says by `items` what it said by `unevaluatedItems`, if no schema within evaluates items."""
    rest = schema.get(_UNEVALUATED, True)
    others = {key: value for key, value in schema.items() if key != _UNEVALUATED}
    if rest in (True, {}):
        return others
    if schema.keys() & _EVALUATING or isinstance(schema.get("items"), list):  # draft 2019-09 has the first items there
        return schema
    return others if "items" in schema else {**others, "items": rest}


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


class UniqueLists:
    """Replaces schemas of lists whose items differ by all of these lists, if the items are a few plain values."""

    def __init__(self, root: Any) -> None:
        """`root` is the whole schema, within which references lead."""
        self._root = root
        self._left = _MOST_CHARACTERS

    def listed(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema that allows the same as this one, an enum of lists; others are returned as they are."""
        if schema.get(_UNIQUE) is not True or schema.get("type") != "array" or schema.keys() - _BESIDE:
            return schema
        values = _values_of(referred(schema.get("items"), self._root))
        least, most = schema.get("minItems", 0), schema.get("maxItems", len(values))
        if not values or not (type(least) is type(most) is int):
            return schema
        sizes = range(max(0, least), min(most, len(values)) + 1)
        if not sizes or sizes[-1] > _LONGEST_LIST:
            return schema
        characters = (max(len(str(value)) for value in values) + 1) * sum(
            size * perm(len(values), size) for size in sizes
        )
        if characters > self._left:
            return schema
        self._left -= characters
        kept = {key: value for key, value in schema.items() if key in _KEPT}
        return {**kept, "enum": [list(each) for size in sizes for each in permutations(values, size)]}


def _values_of(items: Any) -> list[Any]:
    """Return the different values of a schema of few texts, integers, booleans and nulls; none if it has others."""
    if not isinstance(items, Mapping) or items.keys() - ANNOTATIONS - {"type", "enum", "minimum", "maximum"}:
        return []
    kind, values = items.get("type"), items.get("enum")
    least, most = items.get("minimum"), items.get("maximum")
    if values is None and kind == "boolean":
        values = [True, False]
    elif values is None and kind == "integer" and type(least) is type(most) is int:
        values = list(range(least, min(most, least + _MOST_VALUES) + 1))
    elif least is not None or most is not None:
        return []
    if not isinstance(values, list) or len(values) > _MOST_VALUES or any(type(value) not in _KINDS for value in values):
        return []
    different = {(type(value), value): value for value in values}.values()
    return [value for value in different if kind is None or kind in _KINDS[type(value)]]
