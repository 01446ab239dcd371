"""Rewrites `not` in JSON schemas, which llguidance refuses by name, where other keywords say the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo_engine.json_schema.walk import ANNOTATIONS

_KINDS = ("null", "boolean", "object", "array", "number", "string")
_OPPOSITE = {
    "minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_ANYTHING = r"[\s\S]*"
_MOST_CHARACTERS, _LONGEST = 4096, 64
"""The most characters of the texts that a `not` forbids, and of one of them. The pattern of all others is some times as
long, and nested as deep as a text is long: llguidance takes those of 80 characters, not of 100."""


def without_negation(schema: dict[str, Any]) -> Any:
    """Return a schema that allows the same, without its own `not`; one whose `not` no other keyword says, as it is."""
    no = schema.get("not")
    others = {key: value for key, value in schema.items() if key != "not"}
    if no is False:
        return others
    if no is True:
        return False
    if not isinstance(no, Mapping):
        return schema
    no = {key: value for key, value in no.items() if key not in ANNOTATIONS}
    if not no:
        return False
    changed = None
    if no.keys() == {"type"}:
        changed = _without_kinds(others, no["type"])
    elif no.keys() == {"required"}:
        changed = _without_all(others, no["required"])
    elif no.keys() == {"enum"} and isinstance(no["enum"], list):
        changed = _without_values(others, no["enum"])
    elif no.keys() == {"const"}:
        changed = _without_values(others, [no["const"]])
    elif len(no) == 1:
        changed = _beyond(others, *next(iter(no.items())))
    return schema if changed is None else changed


def _listed(kinds: Any) -> list[Any]:
    return [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []


def _without_kinds(schema: dict[str, Any], kinds: Any) -> Any:
    """Return the schema without values of these types; None if it has numbers that may be integers or not."""
    forbidden, own = _listed(kinds), _listed(schema.get("type", list(_KINDS)))
    if not forbidden or not own or ("integer" in forbidden and "number" in own and "number" not in forbidden):
        return None
    forbidden = [*forbidden, *["integer"] * ("number" in forbidden)]
    left = [kind for kind in own if kind not in forbidden]
    return {**schema, "type": left} if left else False


def _without_values(schema: dict[str, Any], values: Sequence[Any]) -> Any:
    """Return the schema without these values, if it is an enum, or one of texts or booleans; None for others."""
    if schema.get("type") == "boolean" and not {"enum", "const"} & schema.keys():
        left = [value for value in (True, False) if not any(value is each for each in values)]
        return {**schema, "enum": left} if left else False
    if "enum" in schema or "const" in schema:
        return _without_own_values(schema, values)
    texts = [value for value in values if isinstance(value, str)]
    if schema.get("type") != "string" or not are_few(texts):
        return None
    other = {"pattern": f"^({other_texts(texts)})$"}
    if "pattern" not in schema:
        return schema | other if texts else schema
    all_of = schema.get("allOf", [])
    return {**schema, "allOf": [*all_of, other]} if isinstance(all_of, list) else None


def _beyond(schema: dict[str, Any], bound: str, value: Any) -> dict[str, Any] | None:
    """Return the schema of the numbers beyond a bound; None if it is not a bound of numbers."""
    if (opposite := _OPPOSITE.get(bound)) is None:
        return None
    own = schema.get(opposite, value)
    if schema.get("type") not in ("integer", "number") or {type(own), type(value)} - {int, float}:
        return None
    return {**schema, opposite: (max if opposite.endswith("inimum") else min)(own, value)}


def _without_own_values(schema: dict[str, Any], values: Sequence[Any]) -> Any:
    own = schema["enum"] if "enum" in schema else [schema["const"]]
    if not isinstance(own, list) or not all(map(_is_plain, [*own, *values])) or {"enum", "const"} <= schema.keys():
        return None
    forbidden = frozenset(values)
    left = [value for value in own if value not in forbidden]
    return {**{key: value for key, value in schema.items() if key != "const"}, "enum": left} if left else False


def _is_plain(value: Any) -> bool:
    """Return whether a value is equal in Python to those that are equal in JSON Schema: true is not 1 there."""
    return value is None or isinstance(value, str)


def _without_all(schema: dict[str, Any], names: Any) -> Any:
    """Return the schema of objects without those that have all of these properties; None if it is of other values."""
    own = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(own, Mapping) or not names or not isinstance(names, list):
        return None
    if not all(isinstance(name, str) for name in names):
        return None
    if len(names) == 1:
        return without_property(schema, names[0])
    if "anyOf" in schema:
        return None
    return {**schema, "anyOf": [without_property({}, name) for name in dict.fromkeys(names)]}


def without_property(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema without objects that have this property. One that lists no property still allows all others.

    One with `unevaluatedProperties` does not get the keyword that would evaluate them.
    """
    own = schema.get("properties", {})
    others = {} if own or "unevaluatedProperties" in schema else {"additionalProperties": True}
    return {**others, **schema, "properties": {**own, name: False}}


def other_texts(texts: Iterable[str], *, beginnings: bool = False) -> str:
    """Return a regular expression of all texts but these, which reads a text from its beginning, letter by letter.

    With `beginnings` it is one of all texts that begin with none of these; no text if one of them is empty.
    """
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[:1], []).append(text[1:])
    first = [letter for letter in rests if letter]
    parts = [] if "" in rests else [""]
    parts.append(f"[^{''.join(map(_escaped, first))}]{_ANYTHING}" if first else r"[\s\S]" + _ANYTHING)
    going_on = [letter for letter in first if not (beginnings and "" in rests[letter])]
    parts += [f"{_escaped(letter)}({other_texts(rests[letter], beginnings=beginnings)})" for letter in going_on]
    return "|".join(parts)


def are_few(texts: Sequence[str]) -> bool:
    """Return whether texts are so few and so short that llguidance takes the expression of all others."""
    sizes = [len(text) for text in texts]
    return sum(sizes) <= _MOST_CHARACTERS and max(sizes, default=0) <= _LONGEST


def _escaped(letter: str) -> str:
    return rf"\x{{{ord(letter):x}}}"
