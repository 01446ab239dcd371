"""Writes `oneOf` of JSON schemas as `anyOf` where no value can be valid under two of the schemas.

llguidance does the same for schemas that it can tell apart, but it does not follow a `$ref`, as in the `oneOf` of a
reference and `null` that OpenAPI documents are full of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from octavo_engine.json_schema.walk import only_lists, referred

_MOST = 32
"""Schemas of one `oneOf` that are compared; the comparisons grow with the square of their number."""
_TYPES = frozenset({"null", "boolean", "object", "array", "number", "string"})
"""The types of JSON's values; every `integer` is a `number`."""
_KIND_OF: Mapping[type, str] = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


@dataclass(frozen=True, slots=True)
class _Limits:
    """What a schema says about its values, as far as it is looked at here."""

    kinds: frozenset[str]
    """The types that the values may have."""
    values: frozenset[tuple[str, Any]] | None
    """The only values, with their types; None if the schema lists none, or lists or objects."""
    properties: Mapping[str, Any]
    required: frozenset[str]
    closed: bool
    """Whether objects have listed properties only."""


def with_any_of(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    """Return a schema without its own `oneOf`, if no value that it allows is valid under two of the schemas.

    Objects that only list their properties are closed where that tells them apart. `root` is the whole schema, for
    `$ref`.
    """
    given = schema.get("oneOf")
    if not isinstance(given, list) or "anyOf" in schema or not 0 < len(given) <= _MOST:
        return schema
    limits = [_limits(referred(each, root)) for each in given]
    closed: set[int] = set()
    for one, other in combinations(range(len(given)), 2):
        if not _disjoint(limits[one], limits[other], root):
            if not _disjoint_if_closed(given[one], given[other]):
                return schema
            closed |= {one, other}
    any_of = [{**each, "additionalProperties": False} if at in closed else each for at, each in enumerate(given)]
    return {("anyOf" if key == "oneOf" else key): any_of if key == "oneOf" else value for key, value in schema.items()}


def _disjoint(one: _Limits, other: _Limits, root: Any) -> bool:
    """Return True if it is sure that no value is valid under both schemas; False if it may be."""
    kinds = one.kinds & other.kinds
    if not kinds or _different(one.values, other.values):
        return True
    if kinds != {"object"}:
        return False
    if any(each.closed and rest.required - each.properties.keys() for each, rest in ((one, other), (other, one))):
        return True
    shared = one.required & other.required & one.properties.keys() & other.properties.keys()
    return any(
        _different(*(_values(referred(each.properties[name], root)) for each in (one, other))) for name in shared
    )


def _disjoint_if_closed(one: Any, other: Any) -> bool:
    """Return True if both schemas only list properties, and each requires one that the other does not list.

    An object with no other properties than those that one of them lists is not valid under the other.
    """
    if not all(isinstance(each, Mapping) and only_lists(each) for each in (one, other)):
        return False
    return not (_names(one) <= other["properties"].keys() or _names(other) <= one["properties"].keys())


def _limits(schema: Any) -> _Limits:
    if not isinstance(schema, Mapping):
        schema = {}
    values, properties = _values(schema), schema.get("properties")
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    properties = properties if isinstance(properties, Mapping) else {}
    return _Limits(_kinds(schema, values), values, properties, _names(schema), closed)


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
    if not isinstance(values, list) or not all(type(value) in _KIND_OF for value in values):
        return None
    return frozenset((_KIND_OF[type(value)], value) for value in values)


def _different(one: frozenset[tuple[str, Any]] | None, other: frozenset[tuple[str, Any]] | None) -> bool:
    """Return True if both schemas list the values that they allow, and no value is in both lists."""
    return one is not None and other is not None and not one & other


def _names(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the properties that a schema requires."""
    names = schema.get("required")
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()
