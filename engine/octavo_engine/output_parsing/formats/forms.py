"""The parts that the form of an answer is made of, from which a grammar is made (structured/structural_tags.py).

They are plain objects, as in a `structural_tag` of a request. A request cannot have those of the types `marker`,
`optional`, `list`, `text_until` and `text_or`.
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


def sequence(*elements: Form) -> Form:
    """Return the form of parts one after another."""
    return {"type": "sequence", "elements": elements}


def either(elements: Sequence[Form]) -> Form:
    """Return the form of one of several parts."""
    return {"type": "or", "elements": elements} if len(elements) > 1 else elements[0]


def optional(content: Form) -> Form:
    """Return the form of a part that may be absent."""
    return {"type": "optional", "content": content}


def listed(item: Form, separator: str, *, several: bool) -> Form:
    """Return the form of one item; with `several`, of up to MOST_CALLS with a separator between them."""
    return {"type": "list", "item": item, "separator": separator, "most": MOST_CALLS} if several else item


def text_until(end: str, least: int = 0, most: int | None = None) -> Form:
    """Return the form of any text up to a marker, and the marker.

    With bounds of its length in characters, it has no line break at its ends; one may come before the marker.
    """
    return {"type": "text_until", "end": end, "least": least, "most": most}


def text_or(calls: Form, unless: str = "") -> Form | None:
    """Return the form of any text, or of any text and then calls: where the marker of calls stands, calls follow.

    The text does not begin with `unless`. None if the calls do not begin with a marker.
    """
    if (found := _behind_marker(calls)) is None:
        return None
    begin, rest = found
    return {"type": "text_or", "begin": begin, "rest": rest, "unless": unless}


def _behind_marker(calls: Form) -> tuple[str, Form] | None:
    """Return the marker with which calls begin and the form of what follows it; None if they begin otherwise."""
    if calls["type"] == "sequence":
        first, *others = calls["elements"]
        if first["type"] == "marker":
            return first["value"], sequence(*others)
        begun = _behind_marker(first)
        return None if begun is None else (begun[0], sequence(begun[1], *others))
    if calls["type"] != "list" or (begun := _behind_marker(calls["item"])) is None:
        return None
    more = {**calls, "most": calls["most"] - 1}
    again = sequence(words(calls["separator"]), more) if calls["separator"] else more
    return begun[0], sequence(begun[1], optional(again))


LINE_BREAK = pattern(r"\n?")
"""A line break, or nothing."""
