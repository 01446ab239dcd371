"""Finds or changes each schema within a JSON schema, and leaves alone what only looks like a schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

_VALUES = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are JSON that may look like a schema."""
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords whose values are objects of schemas by name: a property may be called `format` or `const`."""

ANNOTATIONS = frozenset(
    {"title", "description", "default", "example", "examples", "$comment", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords that allow and forbid nothing; `example` is OpenAPI's."""
LISTING = ANNOTATIONS | {"$id", "$schema", "$defs", "definitions", "type", "properties", "required"}
"""Keywords of a schema that only lists properties: with no others, `properties` has all its fields."""
_BESIDE = ANNOTATIONS | {"$schema", "$defs", "definitions"}
"""Keywords beside a `$ref` that change nothing of what it allows."""
_MOST_REFERENCES = 8
"""References that are followed from one schema, each to the next."""
_MOST_DIGITS = 9
"""Of a place in a list, in a `$ref`."""


def subschemas(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each schema within a schema of draft 2020-12, itself included, in no particular order."""
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, Mapping):
            yield each
            for key, value in each.items():
                if key not in _VALUES:
                    left += value.values() if key in _BY_NAME and isinstance(value, Mapping) else [value]


def only_lists(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema only lists properties: those that it requires are listed, and it says no more of them."""
    names = schema.get("properties")
    return isinstance(names, Mapping) and schema.keys() <= LISTING and names_within(schema.get("required", ()), names)


def names_within(required: Any, names: Mapping[str, Any]) -> bool:
    """Return whether `required` is a list of names that are all in `names`."""
    return isinstance(required, list | tuple) and all(isinstance(name, str) and name in names for name in required)


def referred(schema: Any, root: Any) -> Any:
    """Return the schema to which a `$ref` within `root` leads, by way of others too; one without is returned as it is.

    Of references that lead to each other in a circle, one is returned.
    """
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) and schema.keys() - _BESIDE == {"$ref"} else None
        if reference == "#":
            schema = root
        elif isinstance(reference, str) and reference.startswith("#/"):
            schema = _at(reference[2:], root)
        else:
            break
    return schema


def _at(pointer: str, root: Any) -> Any:
    found = root
    for part in pointer.split("/"):
        found = _part(found, part.replace("~1", "/").replace("~0", "~"))
    return found


def _part(whole: Any, name: str) -> Any:
    """Return the value of this name in an object, or at this place in a list; None if there is none."""
    if isinstance(whole, Mapping):
        return whole.get(name)
    at = int(name) if isinstance(whole, list) and name.isdecimal() and len(name) <= _MOST_DIGITS else -1
    return whole[at] if str(at) == name and at < len(whole) else None


def changed_schema(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy of a schema of draft 2020-12 in which `change` has replaced each schema, the inner ones first."""
    if isinstance(schema, list):
        return [changed_schema(each, change) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return change({key: _changed_keyword(key, value, change) for key, value in schema.items()})


def _changed_keyword(key: str, value: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    if key in _VALUES:
        return value
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: changed_schema(each, change) for name, each in value.items()}
    return changed_schema(value, change)
