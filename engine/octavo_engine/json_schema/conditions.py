"""Writes conditions on the properties of objects, which llguidance refuses by name, as an `anyOf` of plain objects.

These are `if` with `then` and `else`, `dependentRequired`, `dependentSchemas`, `dependencies`, `unevaluatedProperties`,
`not`, and a `oneOf` of which several schemas may hold. Each case is a whole object of its own, so that one that only
lists its properties can be closed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from octavo_engine.json_schema.cases import CONDITIONS, JOINS, OUTSIDE, Cases, NoCasesError

_UNEVALUATED = "unevaluatedProperties"
REFUSED = CONDITIONS | {"not", _UNEVALUATED}
_IF = frozenset({"if", "then", "else"})
_MOST_CHARACTERS, _MOST_OF_ALL = 1 << 16, 1 << 18
"""The most characters of the cases of one schema, each of which has its own copy of the properties, and of those of all
schemas within one."""


class Conditions:
    """Writes the conditions in one whole schema as cases."""

    def __init__(self, root: Any, refused: Set[str] = REFUSED) -> None:
        """`root` is the whole schema, for `$ref`; `refused` are the keywords for which a schema is divided."""
        self._cases, self._refused = Cases(root), refused
        self._left = _MOST_OF_ALL

    def divided(self, schema: dict[str, Any]) -> Any:
        """Return a schema of the same values without conditions of its own; one that has no cases, as it is."""
        schema = _without_idle(schema)
        schemas = (schema, *_parts(schema, "allOf"), *_parts(schema, "anyOf"))
        if self._left < 0 or not any(isinstance(each, Mapping) and self._refused & each.keys() for each in schemas):
            return schema
        joined = {key: value for key, value in schema.items() if key in JOINS | CONDITIONS}
        start = {key: value for key, value in schema.items() if key not in OUTSIDE | joined.keys() | {_UNEVALUATED}}
        if "properties" in schema:
            start.setdefault("type", "object")
        try:
            cases = [_complete(case, schema) for case in self._cases.of(start, joined)]
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
    if schema.get(_UNEVALUATED) in (True, {}):
        others = {key: value for key, value in schema.items() if key != _UNEVALUATED}
        schema = {"additionalProperties": True, **others}
    if schema.keys() & _IF and ("if" not in schema or not schema.keys() & {"then", "else"}):
        return {key: value for key, value in schema.items() if key not in _IF}
    return schema


def _parts(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    parts = schema.get(keyword)
    return parts if isinstance(parts, list) else []


def _complete(case: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case of the schema without other properties, if the schema forbids those that it does not evaluate."""
    if case.get("type") != "object" or schema.get(_UNEVALUATED, False) is not False:
        raise NoCasesError
    return {"additionalProperties": False, **case} if _UNEVALUATED in schema else case
