"""Refuses the `minProperties` of JSON schemas that llguidance would count wrongly: it counts a repeated name twice.

Names that a schema does not list may be repeated in an answer, and readers keep the last of them.
"""

from __future__ import annotations

from typing import Any


class UncountedPropertiesError(ValueError):
    """Raised for a schema whose answers could have too few properties."""


def with_counted_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema; UncountedPropertiesError if its `minProperties` leaves more than one property unnamed."""
    least, required = schema.get("minProperties", 0), schema.get("required", [])
    named = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > named + 1:
        raise UncountedPropertiesError(
            f"minProperties may be at most {named + 1} here, one more than there are names in required, since the "
            "names of other properties may be repeated; list more names, or use an array with minItems"
        )
    return schema
