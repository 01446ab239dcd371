r"""Narrows the patterns of JSON schemas where llguidance would let a string have characters that they exclude.

llguidance matches a string as JSON writes it. A class of characters that has the control characters, such as `[^"]`,
then allows every escape, among them `\"` and `\\`, although the class has neither a quotation mark nor a backslash.
"""

from __future__ import annotations

import re
from typing import Any

_CLASS = re.compile(r"\\.|\[\^(?P<members>\]?(?:\\.|\[:\^?[a-z]+:\]|[^\\\]])*)\]", re.DOTALL)
"""An escape outside of classes, or a class of all characters but its members."""
_CONTROLS = r"\x00-\x1f"
_BY_NUMBER = re.compile(r"\\[xuU]\{([0-9a-fA-F]{1,8})\}")
"""A character as only Rust's syntax writes it."""
_CLASSES_WITHIN = re.compile(r"\[|&&|--|~~")
"""What begins a class within a class, or joins two of them, in Rust's syntax only."""


def with_exact_pattern(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the same schema with narrower patterns of its own; the schemas in it are left as they are."""
    narrowed = dict(schema)
    if isinstance(pattern := schema.get("pattern"), str):
        narrowed["pattern"] = _narrowed(pattern)
    if isinstance(rules := schema.get("patternProperties"), dict):
        narrowed["patternProperties"] = {_narrowed(name): rule for name, rule in rules.items()}
    return narrowed


def _narrowed(pattern: str) -> str:
    """Return the pattern, whose classes that exclude a quotation mark or a backslash exclude control characters too."""
    return _CLASS.sub(lambda found: _without_controls(found[0], found["members"]), pattern)


def _without_controls(text: str, members: str | None) -> str:
    return text if members is None or not _may_have(members) else f"{text[:-1]}{_CONTROLS}]"


def _may_have(members: str) -> bool:
    r"""Return whether a class of these members has `"` or `\`; True too if Python's `re` cannot read them."""
    if _CLASSES_WITHIN.search(members):
        return True
    members = _BY_NUMBER.sub(lambda found: rf"\U{found[1]:0>8}", members)
    try:
        return re.search(f"[{members}]", '"\\') is not None
    except re.error:
        return True
