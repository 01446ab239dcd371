"""Hermes 2 and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one pair of tags for each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import Content, Event
from octavo_engine.output_parsing.formats.call_schema import call_schema
from octavo_engine.output_parsing.formats.forms import LINE_BREAK, Form, json_form, listed, marker, sequence
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_calls, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, pass_until, read_until

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    while (yield from pass_until(text, Content, _BEGIN)):
        if (yield from or_content(text, json_calls(text), _BEGIN)):
            yield from read_until(text, _END)
    return True


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    call = sequence(marker(_BEGIN), LINE_BREAK, json_form(call_schema(tools)), LINE_BREAK, marker(_END))
    return listed(call, "\n", several=several)


HERMES = Format(name="hermes", parse=_parse, calls=_calls, in_template=(_BEGIN,))
