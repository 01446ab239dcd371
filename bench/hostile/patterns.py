"""Patterns, schemas and grammars that take long to check or to compile, most of them short."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from bench.hostile.kinds import Attack, posts, users
from bench.hostile.wire import Target

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


def intersected(number: int) -> dict[str, Any]:
    """Return a chat with a grammar of 200 regular expressions that must all match; only compiling it takes long."""
    parts = " & ".join(f"/(a|b)*a(a|b){{{each + number}}}/" for each in range(200))
    return _chat(guided_grammar=f"start: A\nA: {parts}")


def patterns_of_one_text(number: int) -> dict[str, Any]:
    """Return a chat with a schema of 30 patterns that one text must match."""
    patterns = [{"pattern": f"(a|b)*a(a|b){{{each + number}}}"} for each in range(30)]
    return _chat(guided_json={"type": "string", "allOf": patterns})


def nearly_too_slow(number: int) -> dict[str, Any]:
    """Return a chat with a valid schema of 1,300 properties, which takes most of the time that a grammar may take."""
    properties = {f"property_{number}_{each}": {"type": "string", "minLength": each} for each in range(1300)}
    return _chat(guided_json={"type": "object", "properties": properties, "required": list(properties)})


def long_numbers(number: int) -> dict[str, Any]:
    """Return a chat with a schema of 5,000 bounds of 17 digits, which have to be rounded."""
    bounds = [{"type": "number", "minimum": each + number + 0.12345678901234567} for each in range(5000)]
    return _chat(guided_json={"prefixItems": bounds, "type": "array", "items": False})


def ambiguous(number: int) -> dict[str, Any]:
    """Return a chat with a grammar that can read each text in many ways, more with each token; 48 answers follow it."""
    many = ('s s | "a" | "b" | " "', 's s s | s s | "a" | "b" | " "')[number % 2]
    return {**_chat(guided_grammar=f"start: s\ns: {many} // {number}"), "n": 48, "temperature": 2, "max_tokens": 60}


_SLOW = (large_classes, pattern_properties, intersected, patterns_of_one_text)


async def patient(target: Target) -> None:
    """Chats with all these grammars in turn, by four clients that wait as Retry-After says."""

    async def user(number: int) -> None:
        while target.open:
            number += 4
            body = json.dumps(_SLOW[number % len(_SLOW)](number)).encode()
            answer = await target.ask(target.head(_CHAT, len(body)) + body)
            wait = re.search(rb"\r\nretry-after: *(\d+)\r\n", answer, re.IGNORECASE)
            await asyncio.sleep(int(wait[1]) if wait else 0)

    await users(4, user)


PATTERNS: dict[str, Attack] = {
    "patterns of large classes (G)": posts(_CHAT, large_classes),
    "300 patterns of names in a schema (H)": posts(_CHAT, pattern_properties),
    "200 intersected regular expressions (G)": posts(_CHAT, intersected),
    "30 patterns of one text in a schema (H)": posts(_CHAT, patterns_of_one_text),
    "schemas that take nearly too long (H)": posts(_CHAT, nearly_too_slow),
    "schemas of long numbers (H)": posts(_CHAT, long_numbers),
    "texts that a grammar reads in many ways × 48 answers (H)": posts(_CHAT, ambiguous, 6),
    "patterns and schemas, from clients that wait as told (G, H)": patient,
}
