"""Refuses the `minProperties` of JSON schemas that llguidance would count wrongly: it counts a repeated name twice.

Names that a schema does not list may be repeated in an answer, and readers keep the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LEAST = "minProperties"


class UncountedPropertiesError(ValueError):
    """Raised for a schema whose answers could have too few properties."""


def with_joined_counts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema, in which the `minProperties` of the schemas in its `allOf` is its own."""
    parts = schema.get("allOf")
    if not isinstance(parts, list) or not any(_LEAST in part for part in parts if isinstance(part, dict)):
        return schema
    given = [part[_LEAST] for part in (schema, *parts) if isinstance(part, dict) and _LEAST in part]
    wrong = [least for least in given if not isinstance(least, int)]  # llguidance refuses them
    others = [{k: v for k, v in part.items() if k != _LEAST} if isinstance(part, dict) else part for part in parts]
    return {**schema, _LEAST: wrong[0] if wrong else max(given), "allOf": others}


def with_counted_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema; UncountedPropertiesError if its `minProperties` leaves more than one property unnamed.

    A schema that allows only the properties that it lists is returned as it is: none of them can be repeated.
    """
    least = schema.get(_LEAST)
    if not isinstance(least, int):
        return schema
    parts = list(_parts(schema))  # of the outermost schema only, which has the count of all
    if any(part.get("additionalProperties") is False and not part.get("patternProperties") for part in parts):
        return schema
    named = len({name for part in parts for name in _required(part)})
    if least > named + 1:
        raise UncountedPropertiesError(
            f"minProperties may be at most {named + 1} here, one more than there are names in required, since the "
            "names of other properties may be repeated; list more names, or use an array with minItems"
        )
    return schema


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the schema and those of its `allOf`, and of theirs: an answer follows all of them."""
    yield schema
    inner = schema.get("allOf")
    for part in inner if isinstance(inner, list) else ():
        if isinstance(part, dict):
            yield from _parts(part)


def _required(schema: dict[str, Any]) -> list[str]:
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
