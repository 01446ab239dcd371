"""Leaves out of JSON schemas what no grammar here can enforce, for functions whose calls need not follow it (`strict`).

A prompt still has the whole schema.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.json_schema.walk import changed_schema

_UNENFORCED = frozenset(
    {
        "not", "if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas", "uniqueItems", "contains",
        "minContains", "maxContains", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords that llguidance refuses."""


def enforceable_schema(schema: Any) -> Any:
    """Return a schema that allows the same or more, without keywords that are not supported.

    A `oneOf` allows values that several of its schemas allow.
    """
    return changed_schema(schema, _enforceable)


def _enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in schema.items() if key not in _UNENFORCED}
    if "anyOf" in kept:
        return kept
    return {"anyOf" if key == "oneOf" else key: value for key, value in kept.items()}
