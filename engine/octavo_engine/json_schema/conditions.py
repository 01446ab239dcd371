"""Writes conditions on the properties of objects, which llguidance refuses by name, as an `anyOf` of plain objects.

These are `if` with `then` and `else`, `dependentRequired`, `dependentSchemas`, `dependencies`, `unevaluatedProperties`,
`not`, and a `oneOf` of which several schemas may hold. Each case is a whole object of its own, so that one that only
lists its properties can be closed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from octavo_engine.json_schema.cases import CONDITIONS, JOINS, OUTSIDE, UNEVALUATED, Cases, NoCasesError
from octavo_engine.json_schema.walk import subschemas

REFUSED = CONDITIONS | {"not", UNEVALUATED}
_IF = frozenset({"if", "then", "else"})
_MOST_CHARACTERS, _MOST_OF_ALL = 1 << 16, 1 << 18
"""The most characters of the cases of one schema, each of which has its own copy of the properties, and of those of all
schemas within one."""


class Conditions:
    """Writes the conditions in one whole schema as cases."""

    def __init__(self, root: Any, refused: Set[str] = REFUSED) -> None:
        """`root` is the whole schema, for `$ref`; `refused` are the keywords for which a schema is divided."""
        self._cases, self._refused = Cases(root), refused
        self._left = -1 if any(map(_leads_into, subschemas(root))) else _MOST_OF_ALL

    def divided(self, schema: dict[str, Any]) -> Any:
        """Return a schema of the same values without conditions of its own; one that has no cases, as it is."""
        schema = _without_idle(schema)
        schemas = (schema, *_parts(schema, "allOf"), *_parts(schema, "anyOf"))
        if self._left < 0 or not any(isinstance(each, Mapping) and self._refused & each.keys() for each in schemas):
            return schema
        joined = {key: value for key, value in schema.items() if key in JOINS | CONDITIONS}
        start = {key: value for key, value in schema.items() if key not in OUTSIDE | joined.keys()}
        if "properties" in schema:
            start.setdefault("type", "object")
        try:
            cases = [_complete(case) for case in self._cases.of(start, joined)]
        except (NoCasesError, RecursionError, TypeError, AttributeError):  # the last two for values of wrong types
            return schema
        if not cases:
            return False if start.get("type") == "object" else schema
        outside = {key: value for key, value in schema.items() if key in OUTSIDE}
        changed = {**outside, **cases[0]} if len(cases) == 1 else {**outside, "anyOf": cases}
        characters = len(json.dumps(changed))
        self._left -= characters
        return schema if characters > _MOST_CHARACTERS or self._left < 0 else changed


def _without_idle(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema without those of its conditions that forbid nothing."""
    if UNEVALUATED in schema and (schema[UNEVALUATED] in (True, {}) or "additionalProperties" in schema):
        others = {key: value for key, value in schema.items() if key != UNEVALUATED}
        schema = {"additionalProperties": True, **others}
    if schema.keys() & _IF and ("if" not in schema or not schema.keys() & {"then", "else"}):
        return {key: value for key, value in schema.items() if key not in _IF}
    return schema


def _leads_into(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema refers to one within another, which is elsewhere in the cases of that, or in many."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return False
    first, *rest = reference[2:].split("/")
    return first not in ("$defs", "definitions") or len(rest) != 1


def _parts(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    parts = schema.get(keyword)
    return parts if isinstance(parts, list) else []


def _complete(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case without other properties, if it forbids those that are not evaluated."""
    if case.get("type") != "object" or case.get(UNEVALUATED, False) is not False:
        raise NoCasesError
    others = {key: value for key, value in case.items() if key != UNEVALUATED}
    return {**others, "additionalProperties": False} if UNEVALUATED in case else case
