"""Writes `oneOf` of JSON schemas as `anyOf` where no value can be valid under two of the schemas.

llguidance does the same for schemas that it can tell apart, but it does not follow a `$ref`, as in the `oneOf` of a
reference and `null` that OpenAPI documents are full of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from octavo_engine.json_schema.walk import only_lists, referred

_MOST = 32
"""Schemas of one `oneOf` that are compared; the comparisons grow with the square of their number."""
_MOST_PAIRS = 4096
"""Comparisons of two schemas for the `oneOf`s of one whole schema."""
_MOST_VALUES, _MOST_NAMES = 256, 64
"""Values and required properties of one schema that are looked at."""
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})
"""The types of JSON's values; every `integer` is a `number`."""
_KIND_OF: Mapping[type, str] = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a schema says about its values, as far as it is looked at here."""

    kinds: frozenset[str]
    """The types that the values may have."""
    values: frozenset[tuple[str, Any]] | None
    """The only values, with their types; None if the schema lists none, lists or objects, or too many."""
    properties: Mapping[str, Any]
    required: frozenset[str]
    """The properties that objects must have; of many, the first ones."""
    fixed: Mapping[str, frozenset[tuple[str, Any]]]
    """The only values of those properties that have such; of many properties, the required and the first ones."""
    closed: bool
    """Whether objects have listed properties only."""


class Alternatives:
    """Writes the `oneOf`s in one schema as `anyOf`s, in time that grows with the schema's length."""

    def __init__(self, root: Any, *, closable: bool) -> None:
        """`root` is the whole schema, for `$ref`. In one that is `closable`, objects that only list may be closed."""
        self._root, self._closable = root, closable
        self._referred: dict[str, _Limits] = {}
        """By the `$ref`: many schemas may refer to the same large one."""
        self._pairs_left = _MOST_PAIRS

    def with_any_of(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema without its own `oneOf`, if no value that it allows is valid under two of the schemas.

        Objects are closed where that tells them apart.
        """
        given = schema.get("oneOf")
        if not isinstance(given, list) or "anyOf" in schema or not 0 < len(given) <= _MOST:
            return schema
        limits = [self._limits(each) for each in given]
        closed: set[int] = set()
        for one, other in combinations(range(len(given)), 2):
            self._pairs_left -= 1
            if self._pairs_left < 0:
                return schema
            if not _disjoint(limits[one], limits[other]):
                if not (self._closable and _disjoint_if_closed(given[one], given[other])):
                    return schema
                closed |= {one, other}
        any_of = [{**each, "additionalProperties": False} if at in closed else each for at, each in enumerate(given)]
        return {
            ("anyOf" if key == "oneOf" else key): any_of if key == "oneOf" else value for key, value in schema.items()
        }

    def _limits(self, schema: Any) -> _Limits:
        found = referred(schema, self._root)
        if found is schema:
            return _limits(schema, self._root)
        reference = schema["$ref"]
        if reference not in self._referred:
            self._referred[reference] = _limits(found, self._root)
        return self._referred[reference]


def _disjoint(one: _Limits, other: _Limits) -> bool:
    """Return True if it is sure that no value is valid under both schemas; False if it may be."""
    kinds = one.kinds & other.kinds
    if not kinds or (one.values is not None and other.values is not None and one.values.isdisjoint(other.values)):
        return True
    if kinds != {"object"}:
        return False
    if any(each.closed and not rest.required <= each.properties.keys() for each, rest in ((one, other), (other, one))):
        return True
    shared = one.fixed.keys() & other.fixed.keys() & (one.required | other.required)
    return any(one.fixed[name].isdisjoint(other.fixed[name]) for name in shared)


def _disjoint_if_closed(one: Any, other: Any) -> bool:
    """Return True if both schemas only list properties, and each requires one that the other does not list.

    An object with no other properties than those that one of them lists is not valid under the other.
    """
    if not all(isinstance(each, Mapping) and only_lists(each) for each in (one, other)):
        return False
    return not (_names(one) <= other["properties"].keys() or _names(other) <= one["properties"].keys())


def _limits(schema: Any, root: Any) -> _Limits:
    if not isinstance(schema, Mapping):
        schema = {}
    values, properties, required = _values(schema), schema.get("properties"), _names(schema)
    properties = properties if isinstance(properties, Mapping) else {}
    looked_at = required.intersection(properties).union(islice(properties, _MOST_NAMES))
    found = {name: _values(referred(properties[name], root)) for name in looked_at}
    fixed = {name: each for name, each in found.items() if each is not None}
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return _Limits(_kinds(schema, values), values, properties, required, fixed, closed)


def _kinds(schema: Mapping[str, Any], values: frozenset[tuple[str, Any]] | None) -> frozenset[str]:
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return _TYPES if values is None else frozenset(kind for kind, _ in values)
    return frozenset("number" if name == "integer" else name for name in names)


def _values(schema: Any) -> frozenset[tuple[str, Any]] | None:
    if not isinstance(schema, Mapping):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or len(values) > _MOST_VALUES or any(type(each) not in _KIND_OF for each in values):
        return None
    return frozenset((_KIND_OF[type(value)], value) for value in values)


def _names(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the properties that a schema requires; of many, the first ones."""
    names = schema.get("required")
    return (
        frozenset(name for name in names[:_MOST_NAMES] if isinstance(name, str))
        if isinstance(names, list)
        else frozenset()
    )
