"""The parts that the form of an answer is made of, from which a grammar is made (structured/structural_tags.py).

They are plain objects, as in a `structural_tag` of a request. A request cannot have those of the types `marker`,
`optional`, `list`, `text_until` and `lark`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Form = Mapping[str, Any]
MOST_CALLS = 16
"""The most calls in an answer whose calls a grammar enforces: a small model may repeat a call without an end."""


class NoFormError(ValueError):
    """Raised if a format cannot hold the arguments of a tool to their schema."""


def words(text: str) -> Form:
    """Return the form of a fixed text."""
    return {"type": "const_string", "value": text}


def marker(text: str) -> Form:
    """Return the form of a text that may be a control token of the model."""
    return {"type": "marker", "value": text}


def pattern(regex: str) -> Form:
    """Return the form of a text that matches a regular expression."""
    return {"type": "regex", "pattern": regex}


def json_form(schema: Mapping[str, Any]) -> Form:
    """Return the form of JSON under a schema."""
    return {"type": "json_schema", "json_schema": schema}


def lark_form(grammar: str) -> Form:
    """Return the form of a text that follows a Lark grammar."""
    return {"type": "lark", "grammar": grammar}


def sequence(*elements: Form) -> Form:
    """Return the form of parts one after another."""
    return {"type": "sequence", "elements": elements}


def either(elements: Sequence[Form]) -> Form:
    """Return the form of one of several parts."""
    return {"type": "or", "elements": elements} if len(elements) > 1 else elements[0]


def optional(content: Form) -> Form:
    """Return the form of a part that may be absent."""
    return {"type": "optional", "content": content}


def listed(item: Form, separator: str, *, several: bool = True, most: int = MOST_CALLS) -> Form:
    """Return the form of one item; with `several`, of up to `most` with a separator between them."""
    return {"type": "list", "item": item, "separator": separator, "most": most} if several else item


def any_text(unless: str = "") -> Form:
    """Return the form of any text, unless a regular expression matches its beginning."""
    return {"type": "any_text", "unless": unless}


def text_until(end: str, least: int = 0, most: int | None = None, *, unless: str = "") -> Form:
    """Return the form of any text up to a marker, and the marker.

    With bounds of its length in characters, it has no line break at its ends; one may come before the marker. With
    `unless` it has no beginning that this regular expression matches.
    """
    return {"type": "text_until", "end": end, "least": least, "most": most, "unless": unless}


def text_or_marked(calls: Form, unless: str = "") -> Form:
    """Return the form of any text, or of any text and then calls: where the marker of calls stands, calls follow.

    No regular expression `unless` matches the beginning of the text.
    """
    begin, rest = behind_marker(calls)
    return either([any_text(unless), sequence(text_until(begin, unless=unless), rest)])


def behind_marker(calls: Form) -> tuple[str, Form]:
    """Return the marker with which calls begin, and the form of what follows it."""
    if calls["type"] == "sequence":
        first, *others = calls["elements"]
        if first["type"] == "marker":
            return first["value"], sequence(*others)
        begin, rest = behind_marker(first)
        return begin, sequence(rest, *others)
    if calls["type"] != "list":
        raise ValueError(f"the calls begin with a {calls['type']}, where a marker is needed")
    begin, rest = behind_marker(calls["item"])
    more = {**calls, "most": calls["most"] - 1}
    again = sequence(words(calls["separator"]), more) if calls["separator"] else more
    return begin, sequence(rest, optional(again))


LINE_BREAK = pattern(r"\n?")
"""A line break, or nothing."""
SPACES = pattern(r"\s{0,4}")
"""A little white space, or nothing."""
