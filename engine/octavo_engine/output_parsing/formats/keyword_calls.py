"""Calls with arguments by name whose values are JSON, `[f(a=1, b="x"), g()]`."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

ARGUMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_CALLED = re.compile(r"\s*([A-Za-z0-9_.-]+)\(\s*")
_KEY = re.compile(rf"({ARGUMENT_NAME.pattern})\s*=\s*")
_BETWEEN = re.compile(r"\s*([,)])\s*")
_BEHIND = re.compile(r"\s*([,\]])")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def keyword_calls(source: str, tools: Container[str]) -> list[tuple[str, str]] | None:
    """Return the names and arguments of calls whose values are JSON, or True, False and None; None if it is other text.

    The same text may mean another value in Python: "\\/" has two characters there.
    """
    calls: list[tuple[str, str]] = []
    try:
        at = 1
        while True:
            name, at = _matched(_CALLED, source, at)
            if name not in tools:
                return None
            arguments, at = _arguments(source, at)
            calls.append((name, arguments))
            sign, at = _matched(_BEHIND, source, at)
            if sign == "]":
                return None if source[at:].strip() else calls
    except (ValueError, RecursionError):
        return None


def _arguments(source: str, at: int) -> tuple[str, int]:
    """Return the arguments of a call as JSON, and the position behind them; ValueError if they are no JSON values."""
    found: list[str] = []
    if source.startswith(")", at):
        return "{}", at + 1
    while True:
        key, at = _matched(_KEY, source, at)
        start = at
        if word := next((word for word in _WORDS if source.startswith(word, at)), None):
            value, at = _WORDS[word], at + len(word)
        else:
            _, at = _DECODER.raw_decode(source, at)
            value = source[start:at]
        found.append(f"{json.dumps(key)}: {value}")
        sign, at = _matched(_BETWEEN, source, at)
        if sign == ")":
            return f"{{{', '.join(found)}}}", at


def _matched(regex: re.Pattern[str], source: str, at: int) -> tuple[str, int]:
    if (found := regex.match(source, at)) is None:
        raise ValueError("is other text")
    return found[1], found.end()
