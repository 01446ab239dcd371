"""Llama 3.1 to 3.3: the answer is a call, `{"name": ..., "parameters": {...}}`, or several with semicolons between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import Content, Event
from octavo_engine.output_parsing.formats.call_schema import call_schema
from octavo_engine.output_parsing.formats.forms import Form, json_form, listed
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_call, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, expect, pass_until, skip_spaces

_TAG = "<|python_tag|>"


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


LLAMA3_JSON = Format(name="llama3_json", parse=_parse, calls=_forced, in_template=('"parameters"', "<|eom_id|>"))
