"""Divides JSON schemas of objects into cases: plain schemas, at least one of which each value is valid under."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from octavo_engine.json_schema.negations import without_negation, without_property
from octavo_engine.json_schema.walk import ANNOTATIONS, referred

Case = dict[str, Any]
"""A schema of objects that has `type`, and perhaps `properties`, `required` and others, but none that joins schemas.

With `unevaluatedProperties`, which is false then, the names in `properties` are those that are evaluated."""

OUTSIDE = ANNOTATIONS | {"$id", "$schema", "$defs", "definitions"}
"""Keywords that say nothing of values."""
JOINS = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not"})
UNEVALUATED = "unevaluatedProperties"
CONDITIONS = frozenset({"if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies"})
_LISTS = frozenset({"type", "properties", "required"})
_WITHIN = frozenset({"properties", "patternProperties", "additionalProperties", "items", "prefixItems", "contains"})
"""Keywords whose meaning depends on each other."""
_MOST_CASES = 64
_MOST_COPIED = 1 << 17
"""Names of properties that are copied from case to case for one whole schema."""
_CHARACTERS = 64
"""Characters of schemas of properties that count as one name: those are written as JSON to compare them."""


class NoCasesError(ValueError):
    """Raised for a schema that is not divided into cases."""


class Cases:
    """Divides the schemas within one whole schema, in time that is limited."""

    def __init__(self, root: Any) -> None:
        """`root` is the whole schema, for `$ref`."""
        self._root = root
        self._left = _MOST_COPIED

    def of(self, case: Case, schema: Any) -> list[Case]:
        """Return the cases of the objects of `case` that are valid under a schema too."""
        self._count(case, schema)
        if isinstance(schema, bool):
            return [case] if schema else []
        keywords = _keywords(schema, _LISTS | JOINS | CONDITIONS)
        cases = self._listed(case, schema)
        if "$ref" in keywords:
            cases = _each(cases, self.of, self._referred({"$ref": schema["$ref"]}))
        if "not" in keywords:
            cases = _each(cases, self.against, schema["not"])
        for part in schema.get("allOf", ()):
            cases = _each(cases, self.of, part)
        if "anyOf" in keywords:
            cases = _each(cases, self._of_any, schema["anyOf"])
        if "oneOf" in keywords:
            cases = _each(cases, self._of_one, schema["oneOf"])
        return _each(cases, self._conditioned, schema) if keywords & CONDITIONS else cases

    def _of_any(self, case: Case, schemas: Iterable[Any]) -> list[Case]:
        return [found for schema in schemas for found in self.of(case, schema)]

    def _of_one(self, case: Case, schemas: Sequence[Any]) -> list[Case]:
        cases: list[Case] = []
        for at, schema in enumerate(schemas):
            cases += _each(self.of(case, schema), self._against_all, [*schemas[:at], *schemas[at + 1 :]])
        return cases

    def against(self, case: Case, schema: Any) -> list[Case]:
        """Return the cases of the objects of `case` that are not valid under a schema."""
        self._count(case, schema)
        if isinstance(schema, bool):
            return [] if schema else [case]
        keywords = _keywords(schema, _LISTS | JOINS - {"oneOf"})
        if schema.get("type", "object") != "object":
            raise NoCasesError
        cases = [found for name in schema.get("required", ()) for found in _absent(case, name)]
        for name, rule in schema.get("properties", {}).items():
            cases += self._other_value(case, name, rule)
        for part in schema.get("allOf", ()):
            cases += self.against(case, part)
        if "$ref" in keywords:
            cases += self.against(case, self._referred({"$ref": schema["$ref"]}))
        if "not" in keywords:
            if UNEVALUATED in case:  # what is listed within a `not` is not evaluated
                raise NoCasesError
            cases += self.of(case, schema["not"])
        return cases + self._against_all(case, schema["anyOf"]) if "anyOf" in keywords else cases

    def _against_all(self, case: Case, schemas: Iterable[Any]) -> list[Case]:
        cases = [case]
        for schema in schemas:
            cases = _each(cases, self.against, schema)
        return cases

    def _conditioned(self, case: Case, schema: Mapping[str, Any]) -> list[Case]:
        cases = [case]
        if "if" in schema:
            holds = _each(self.of(case, schema["if"]), self.of, schema.get("then", True))
            fails = _each(self.against(case, schema["if"]), self.of, schema.get("else", True))
            cases = holds + fails
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, rule in schema.get(keyword, {}).items():
                implied = {"required": rule} if isinstance(rule, list) else rule
                cases = _each(cases, self.of, {"anyOf": [{"not": {"required": [name]}}, implied]})
        return cases

    def _listed(self, case: Case, schema: Mapping[str, Any]) -> list[Case]:
        """Return the case with the properties of a schema too; none if one that it requires is not allowed."""
        if schema.get("type", "object") != "object":
            raise NoCasesError
        kind = {"type": "object"} if "type" in schema else {}
        listed, rest = case.get("properties", {}), case.get("additionalProperties", True)
        new = schema.get("properties", {})
        if new.keys() - listed.keys() and "patternProperties" in case:
            raise NoCasesError
        both = {name: self._of_both(listed.get(name, rest), rule) for name, rule in new.items()}
        changed = {**case, **kind, **({"properties": {**listed, **both}} if new else {})}
        return _present(changed, schema.get("required", ()))

    def _other_value(self, case: Case, name: str, rule: Any) -> list[Case]:
        """Return the case in which a property has a value that is not valid under `rule`; none if it cannot."""
        listed = case.get("properties", {})
        if name not in listed and case.keys() & {"patternProperties", UNEVALUATED}:
            raise NoCasesError
        own = self._referred(listed.get(name, case.get("additionalProperties", True)))
        own, rule = {} if own is True else own, self._referred(rule)
        self._count_text(own, rule)
        if own is not False and "not" in own:
            raise NoCasesError
        other = own is not False and without_negation({**own, "not": rule})
        if isinstance(other, dict) and "not" in other:
            raise NoCasesError
        return _present({**case, "properties": {**listed, name: other}}, [name])

    def _of_both(self, one: Any, other: Any) -> Any:
        """Return a schema of the values that are valid under both."""
        self._count_text(one, other)
        if one is True or json.dumps(one) in ("{}", json.dumps(other)):
            return other
        if other in (True, {}):
            return one
        if one is False or other is False:
            return False
        one, other = self._referred(one), self._referred(other)
        self._count_text(one, other)
        values, kept = other.get("enum", [other.get("const")]), one.get("enum")
        only_values = other.keys() - OUTSIDE - {"type"} in ({"enum"}, {"const"})
        if isinstance(kept, list) and only_values and other.get("type") in (None, one.get("type")):
            texts = {json.dumps(value, sort_keys=True) for value in values}
            left = [value for value in kept if json.dumps(value, sort_keys=True) in texts]
            return {**one, "enum": left} if left else False
        shared = (one.keys() & other.keys()) - ANNOTATIONS
        alike = all(json.dumps(one[key]) == json.dumps(other[key]) for key in shared)
        if alike and not (_WITHIN & one.keys() and _WITHIN & other.keys()):
            return {**one, **other}
        kind = {key: value for key, value in {**other, **one}.items() if key == "type"}
        return {**kind, "allOf": [one, other]}

    def _count(self, case: Case, schema: Any) -> None:
        """Count the names that the next cases may copy; NoCasesError if they are too many."""
        self._left -= (_names_in(case) + 1) * (_names_in(schema) + 1)
        if self._left < 0:
            raise NoCasesError

    def _count_text(self, *schemas: Any) -> None:
        """Count the characters of schemas that are compared; NoCasesError if they are too many."""
        self._left -= sum(len(json.dumps(each)) for each in schemas) // _CHARACTERS
        if self._left < 0:
            raise NoCasesError

    def _referred(self, schema: Any) -> Any:
        found = referred(schema, self._root)
        if found is None or (isinstance(found, Mapping) and "$ref" in found):
            raise NoCasesError
        return found


def _names_in(schema: Any) -> int:
    """Return the number of properties that a schema lists or requires."""
    return len(schema.get("properties", ())) + len(schema.get("required", ())) if isinstance(schema, Mapping) else 0


def _keywords(schema: Any, known: frozenset[str]) -> frozenset[str]:
    """Return the keywords that say something of values; NoCasesError if there are others than those that are known."""
    if not isinstance(schema, Mapping) or schema.keys() - OUTSIDE - known:
        raise NoCasesError
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise NoCasesError
    return frozenset(schema.keys() - OUTSIDE)


def _each(cases: Iterable[Case], divide: Callable[[Case, Any], list[Case]], by: Any) -> list[Case]:
    found: list[Case] = []
    for case in cases:
        found += divide(case, by)
        if len(found) > _MOST_CASES:
            raise NoCasesError
    return found


def _absent(case: Case, name: str) -> list[Case]:
    """Return the case without a property; none if it requires that."""
    return [] if name in case.get("required", ()) else [without_property(case, name)]


def _present(case: Case, names: Iterable[str]) -> list[Case]:
    """Return the case with more properties that are required; none if it does not allow one of them."""
    properties, required = case.get("properties", {}), [*case.get("required", ())]
    required += [name for name in names if name not in required]
    rest = True if "patternProperties" in case else case.get("additionalProperties", True)
    if any(properties.get(name, rest) is False for name in required):
        return []
    return [{**case, "required": required} if required else case]
