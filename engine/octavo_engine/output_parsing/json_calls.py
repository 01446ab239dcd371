"""Calls of tools that models write as JSON objects, `{"name": ..., "arguments": {...}}`, read while they arrive."""

from __future__ import annotations

import json
from collections.abc import Container, Generator
from dataclasses import dataclass
from typing import Literal

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, expect, skip_spaces

_ARGUMENTS = ("arguments", "parameters")
_EMPTY = "{}"
_MAX_NAME = 256
_SCALAR_ENDS = frozenset(",}] \t\r\n")


class _Scanner:
    """A scanner that finds the end of a JSON value, fed one character after another."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = self._begun = False

    @property
    def may_end(self) -> bool:
        """True if the value is complete should nothing follow, which only numbers and words can be."""
        return self._begun and not self._depth and not self._quoted

    def place(self, character: str) -> Literal["inside", "last", "after"]:
        """Return a character's position: "inside" the value, its "last" one, or "after" its end."""
        if self._quoted:
            self._quoted = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
            return "inside" if self._quoted or self._depth else "last"
        if not self._depth and (character in _SCALAR_ENDS or (self._begun and character in '"{[')):
            return "after"
        self._begun = True
        if character == '"':
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return "inside" if self._depth else "last"
        return "inside"


def json_value(text: StreamedText, scanner: _Scanner | None = None) -> Steps[str]:
    """Yield the next JSON value as it is written, piece by piece; False if none comes, or the text ends within it.

    With a `scanner` that has seen the value's beginning, the rest of it.
    """
    scanner = scanner or _Scanner()
    while True:
        for index in range(len(text)):
            place = scanner.place(text[index])
            if place != "inside":
                if piece := text.take(index + (place == "last")):
                    yield piece
                return place == "last" or scanner.may_end
        if len(text):
            yield text.take()
        if text.ended:
            return scanner.may_end
        yield MORE


def collected(steps: Steps[str]) -> Generator[None, None, str | None]:
    """Return all pieces of a value as one text, or None if it is not complete; yield MORE meanwhile."""
    parts: list[str] = []
    while True:
        try:
            piece = next(steps)
        except StopIteration as end:
            return "".join(parts) if end.value else None
        if piece is MORE:
            yield MORE
        else:
            parts.append(piece)


@dataclass(slots=True)
class _Call:
    """A tool call while it is parsed."""

    tools: Container[str] | None
    name: str | None = None
    early: str | None = None
    """Arguments that came before the name."""
    given: bool = False
    """Whether arguments were passed on."""


def json_call(text: StreamedText, tools: Container[str] | None = None) -> Steps[Event]:
    """Yield one call as a JSON object; False if what comes is none (of `tools`, if they are given), or not complete.

    Arguments are passed on as they are written once the name is known.
    """
    call = _Call(tools)
    if not (yield from expect(text, "{")):
        return False
    while (yield from skip_spaces(text)) and text[0] != "}":
        if not (yield from _member(text, call)):
            return False
        if (yield from skip_spaces(text)):
            yield from expect(text, ",")
    if not (yield from expect(text, "}")) or call.name is None:
        return False
    if not call.given:
        yield CallArguments(_unquoted(call.early or _EMPTY))
    return True


def _member(text: StreamedText, call: _Call) -> Steps[Event]:
    """Yield a key and its value; False if that is no JSON, or no tool's name."""
    key = yield from _string(text)
    if key is None or not ((yield from skip_spaces(text)) and (yield from expect(text, ":"))):
        return False
    if key == "name" and call.name is None:
        name = yield from _string(text)
        if not name or len(name) > _MAX_NAME or (call.tools is not None and name not in call.tools):
            return False
        call.name = name
        yield CallStart(name)
        return True
    if key in _ARGUMENTS and call.name is not None and not call.given and call.early is None:
        call.given = True
        return (yield from json_arguments(text))
    if not (yield from skip_spaces(text)):
        return False
    value = yield from collected(json_value(text))
    if key in _ARGUMENTS:
        call.early = value
    return value is not None


def json_calls(text: StreamedText) -> Steps[Event]:
    """Yield one call, or a JSON list of calls."""
    if not (yield from skip_spaces(text)):
        return False
    if text[0] != "[":
        return (yield from json_call(text))
    text.take(1)
    while (yield from skip_spaces(text)):
        if text[0] == "]":
            text.take(1)
            return True
        if text[0] == ",":
            text.take(1)
        elif not (yield from json_call(text)):
            return False
    return False


def json_arguments(text: StreamedText) -> Steps[Event]:
    """Yield the arguments as they are written; those that a model wrote as a string of JSON are that JSON.

    An object with nothing in it is `{}`, whatever white space the model wrote within.
    """
    if not (yield from skip_spaces(text)):
        return False
    if text[0] == '"':
        value = yield from collected(json_value(text))
        if value is None:
            return False
        yield CallArguments(_unquoted(value))
        return True
    if text[0] != "{":
        return False
    scanner = _Scanner()
    begun = yield from _object_begun(text, scanner)
    yield CallArguments(begun)
    if begun == _EMPTY:
        return True
    steps = json_value(text, scanner)
    while True:
        try:
            piece = next(steps)
        except StopIteration as end:
            return bool(end.value)
        yield MORE if piece is MORE else CallArguments(piece)


def _object_begun(text: StreamedText, scanner: _Scanner) -> Generator[None, None, str]:
    """Return the brace that opens an object, with the white space behind it; yield MORE meanwhile.

    It is the complete object if there is nothing in it.
    """
    scanner.place(text[0])
    read = [text.take(1)]
    while True:
        read.append(text.take(text.spaces()))
        if len(text) or text.ended:
            break
        yield MORE
    if len(text) and text[0] == "}":
        text.take(1)
        return _EMPTY
    return "".join(read)


def _unquoted(value: str) -> str:
    if not value.startswith('"'):
        return value
    try:
        inner = json.loads(value)
        return inner if isinstance(json.loads(inner), dict) else value
    except (ValueError, RecursionError, TypeError):
        return value


def _string(text: StreamedText) -> Generator[None, None, str | None]:
    """Return a JSON string's value, or None if none comes; yield MORE meanwhile."""
    if not (yield from skip_spaces(text)) or text[0] != '"':
        return None
    value = yield from collected(json_value(text))
    try:
        found = None if value is None else json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def or_content(text: StreamedText, steps: Steps[Event], marker: str = "") -> Steps[Event]:
    """Yield what `steps` yield; if they fail before any call, yield what they read, after its marker, as content."""
    text.mark()
    called = False
    while True:
        try:
            event = next(steps)
        except StopIteration as end:
            read = text.read_since_mark()
            if not end.value and not called:
                yield Content(marker + read)
            return bool(end.value)
        called = called or isinstance(event, CallStart)
        yield event
