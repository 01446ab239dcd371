r"""Finds the JSON schemas that name control characters which JSON can write as `\u` and a number only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from octavo_engine.json_schema.walk import subschemas

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


def names_control_characters(schema: Any, text: str) -> bool:
    """Return whether a schema with this JSON text names one: in a const, an enum, a pattern or a property's name.

    Return False for a schema that is nested so deeply that llguidance refuses it.
    """
    try:
        return _MAY_NAME_ONE.search(text) is not None and any(map(_names_one, subschemas(schema)))
    except RecursionError:
        return False


def _names_one(schema: Mapping[str, Any]) -> bool:
    texts = _texts([schema.get("const"), schema.get("enum"), schema.get("required"), _names(schema, "properties")])
    patterns = _texts([schema.get("pattern"), _names(schema, "patternProperties")])
    return any(map(_IN_A_TEXT.search, texts)) or any(
        found["named"] for pattern in patterns for found in _IN_A_PATTERN.finditer(pattern)
    )


def _names(schema: Mapping[str, Any], keyword: str) -> list[str]:
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
