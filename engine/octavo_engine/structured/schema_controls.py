r"""Finds the JSON schemas that name control characters which JSON can write as `\u` and a number only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from octavo_engine.schema_walk import changed_schema

_MAY_NAME_ONE = re.compile(r"\\|\x7f|:cntrl:")
"""What is in the JSON text of each schema that names a control character."""
_ONE = r"\x00-\x07\x0b\x0e-\x1f\x7f"
_IN_A_TEXT = re.compile(f"[{_ONE}]")
_NUMBER = r"(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])"
_IN_A_PATTERN = re.compile(
    rf"""
    \[\^(?:\\.|[^\\\]])*
    | (?P<named>
        [{_ONE}] | \[:cntrl:\]
        | \\(?:[av] | (?:x|u00|U000000){_NUMBER} | [xuU]\{{0*(?:{_NUMBER}|[0-7bBeEfF])\}} | p(?:C|\{{C))
    )
    | \\.
    """,
    re.DOTALL | re.VERBOSE,
)
"""A class of other characters, which names what it excludes; a control character; or another escape."""


def names_control_characters(text: str) -> bool:
    """Return whether the JSON text of a schema names one: in a const, an enum, a pattern or the name of a property.

    Return False for what is no JSON, which llguidance refuses.
    """
    if not _MAY_NAME_ONE.search(text):
        return False
    named: list[bool] = []

    def look(schema: dict[str, Any]) -> dict[str, Any]:
        named.append(_names_one(schema))
        return schema

    try:
        changed_schema(json.loads(text), look)
    except (ValueError, RecursionError):
        return False
    return any(named)


def _names_one(schema: dict[str, Any]) -> bool:
    texts = _texts([schema.get("const"), schema.get("enum"), schema.get("required"), _names(schema, "properties")])
    patterns = _texts([schema.get("pattern"), _names(schema, "patternProperties")])
    return any(map(_IN_A_TEXT.search, texts)) or any(
        found["named"] for pattern in patterns for found in _IN_A_PATTERN.finditer(pattern)
    )


def _names(schema: dict[str, Any], keyword: str) -> list[str]:
    value = schema.get(keyword)
    return list(value) if isinstance(value, dict) else []


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in a JSON value, and its names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        yield from _texts(list(value.values()))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
