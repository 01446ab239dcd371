r"""Rewrites the patterns of JSON schemas where llguidance would let a string have characters that they exclude.

llguidance matches a string as JSON writes it. A class of characters that has all control characters, such as `[^"]`,
then allows every escape, among them `\"` and `\\`, although the class has neither a quotation mark nor a backslash. One
that has all of them but U+0000 allows exactly its characters.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

_CLASS = re.compile(
    r"""
    (?P<property>\\[pP](?:\{[^}]{0,64}\}|[a-zA-Z]))
    | \\.
    | \[(?P<members>\^?\]?(?:\\.|\[:\^?[a-z]+:\]|[^\\\]])*)(?:(?P<end>\])|\\?\Z)
    """,
    re.DOTALL | re.VERBOSE,
)
r"""A class of a property, such as `\P{P}`; another escape; or a class of characters. Classes without an end are matched
as well, so that they are read once."""
_AHEAD = "(?="
_BY_NUMBER = re.compile(r"\\[xuU]\{([0-9a-fA-F]{1,8})\}")
"""A character as only Rust's syntax writes it."""
_CLASSES_WITHIN = re.compile(r"\[|&&|--|~~")
"""What begins a class within a class, or joins two of them, in Rust's syntax only."""


def with_exact_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with exact patterns of its own; the schemas in it are left as they are."""
    exact = dict(schema)
    if isinstance(pattern := schema.get("pattern"), str):
        *ahead, exact["pattern"] = map(_exact, _without_look_ahead(pattern))
        if ahead and isinstance(all_of := schema.get("allOf", []), list):
            exact["allOf"] = [*all_of, *({"pattern": each} for each in ahead)]
    if isinstance(rules := schema.get("patternProperties"), dict):
        exact["patternProperties"] = {_exact(name): rule for name, rule in rules.items()}
    return exact


def _without_look_ahead(pattern: str) -> list[str]:
    """Return patterns all of which a text must match: `^(?:a)` and `^b` for `^(?=a)b`, so that none begins so.

    A pattern with alternatives outside of groups is returned as it is.
    """
    masked = _CLASS.sub(lambda found: "_" * len(found[0]), pattern)
    depths = list(accumulate({"(": 1, ")": -1}.get(letter, 0) for letter in masked))
    if not masked.startswith(f"^{_AHEAD}") or any(map(_is_bar, masked, depths)):
        return [pattern]
    found, at = [], 1
    while masked.startswith(_AHEAD, at) and 0 in depths[at:]:
        end = depths.index(0, at)
        found.append(f"^(?:{pattern[at + len(_AHEAD) : end]})")
        at = end + 1
    return [*found, f"^{pattern[at:]}"]


def _is_bar(letter: str, depth: int) -> bool:
    return letter == "|" and depth == 0


def _exact(pattern: str) -> str:
    """Return the same pattern, whose classes lack U+0000 if they would otherwise have every escape."""
    return _CLASS.sub(_without_null, pattern)


def _without_null(found: re.Match[str]) -> str:
    inexact = found["property"] or (found["end"] and _may_be_inexact(found["members"]))
    return rf"[{found[0]}&&[^\x00]]" if inexact else found[0]


def _may_be_inexact(members: str) -> bool:
    r"""Return whether a class of these members has all control characters, but lacks `"` or `\`.

    Return True too if Python's `re` cannot read the members.
    """
    if _CLASSES_WITHIN.search(members):
        return True
    members = _BY_NUMBER.sub(lambda found: rf"\U{found[1]:0>8}", members)
    try:
        has = re.compile(f"[{members}]").match
    except re.error:
        return True
    return bool(has("\x00") and has("\x1f")) and not (has('"') and has("\\"))
