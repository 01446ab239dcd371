"""Patterns and schemas that are short, but take a text worker seconds to check and the engine seconds to compile."""

from __future__ import annotations

from typing import Any

from bench.hostile.kinds import Attack, posts

_CHAT = "/v1/chat/completions"


def _chat(**form: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **form}


def large_classes(number: int) -> dict[str, Any]:
    """Return a chat with a regular expression of large character classes without regard to case."""
    return _chat(guided_regex=f"(?i){number}" + "[a-z\u00e0-\uffff]" * 3000)


def pattern_properties(number: int) -> dict[str, Any]:
    """Return a chat with a schema of 300 patterns of names, each of which is compared with all others."""
    patterns = {f"^a{{{each}}}$": {"type": "string", "pattern": f"^(a|b){{0,{each + number}}}$"} for each in range(300)}
    return _chat(guided_json={"type": "object", "patternProperties": patterns})


PATTERNS: dict[str, Attack] = {
    "patterns of large classes (G)": posts(_CHAT, large_classes),
    "300 patterns of names in a schema (H)": posts(_CHAT, pattern_properties),
}
