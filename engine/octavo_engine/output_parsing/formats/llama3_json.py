"""Llama 3.1 to 3.3: the answer is a call, `{"name": ..., "parameters": {...}}`, or several with semicolons between."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import Content, Event
from octavo_engine.output_parsing.formats.call_schema import arguments_schema, call_schema
from octavo_engine.output_parsing.formats.forms import (
    MOST_CALLS,
    Form,
    either,
    json_form,
    listed,
    marker,
    optional,
    pattern,
    sequence,
    text_or_marked,
    words,
)
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_call, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, expect, pass_until, skip_spaces

_TAG = "<|python_tag|>"
_SPACE = r"\s{0,4}"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    if (yield from _calls(text, tools)):
        return True
    while (yield from pass_until(text, Content, _TAG)):
        yield from _calls(text, tools)
    return True


def _calls(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    """Read tool calls to the end of the answer; text that is no call stays content."""
    text.mark()
    yield from skip_spaces(text)
    yield from expect(text, _TAG)
    yield from skip_spaces(text)
    if not len(text) or text[0] != "{":
        if before := text.read_since_mark():
            yield Content(before)
        return False
    text.read_since_mark()
    while (yield from or_content(text, json_call(text, tools))):
        yield from skip_spaces(text)
        yield from expect(text, ";")
        if not (yield from skip_spaces(text)):
            return True
    return False


def _forced(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    return listed(json_form(call_schema(tools, arguments="parameters")), "; ", several=several)


def _text_or_calls(tools: Sequence[Tool], *, several: bool, unless: str) -> Form:
    """Return the form of calls, or of any text, behind whose tag calls follow.

    No text begins with another object that names a tool. A call's beginning is one lexeme up to the end of the name,
    since llguidance's lexer takes the longest lexeme, and this one ends where a text has to be another one.
    """
    names = "|".join(re.escape(tool.name) for tool in tools)
    called = rf'\s*\{{(.|\n)*"name"\s*:\s*"({names})"'
    tagged = sequence(marker(_TAG), _forced(tools, "", several=several))
    text = text_or_marked(tagged, f"{called}|{unless}" if unless else called)
    call = json_form(call_schema(tools, arguments="parameters"))
    more = [optional(sequence(words("; "), listed(call, "; ", most=MOST_CALLS - 1)))] if several else []
    return either([text, sequence(either([*map(_begun_call, tools)]), *more)])


def _begun_call(tool: Tool) -> Form:
    name = pattern(rf'{_SPACE}\{{{_SPACE}"name"{_SPACE}:{_SPACE}"{re.escape(tool.name)}"')
    between = pattern(rf'{_SPACE},{_SPACE}"parameters"{_SPACE}:{_SPACE}')
    return sequence(name, between, json_form(arguments_schema(tool)), pattern(rf"{_SPACE}\}}"))


LLAMA3_JSON = Format(
    name="llama3_json",
    parse=_parse,
    calls=_forced,
    unmarked=_text_or_calls,
    in_template=('"parameters"', "<|eom_id|>"),
)
