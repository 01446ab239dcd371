"""Hermes 2 and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one pair of tags for each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import Content, Event
from octavo_engine.output_parsing.formats.call_schema import call_schema
from octavo_engine.output_parsing.formats.forms import (
    LINE_BREAK,
    Form,
    behind_marker,
    either,
    json_form,
    listed,
    marker,
    sequence,
)
from octavo_engine.output_parsing.formats.text_calls import divided, text_call, text_call_form
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_calls, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, pass_until, read_until, skip_spaces

_BEGIN, _END = "<tool_call>", "</tool_call>"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    _, of_text = divided([*tools.values()])
    while (yield from pass_until(text, Content, _BEGIN)):
        if of_text and (yield from skip_spaces(text)) and (yield from text_call(text, of_text)):
            return True
        if (yield from or_content(text, json_calls(text), _BEGIN)):
            yield from read_until(text, _END)
    return True


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    of_json, of_text = divided(tools)
    of_line = sequence(LINE_BREAK, text_call_form(of_text)) if of_text else None
    if not of_json and of_line is not None:
        return sequence(marker(_BEGIN), of_line)
    call = sequence(marker(_BEGIN), LINE_BREAK, json_form(call_schema(of_json)), LINE_BREAK, marker(_END))
    calls = listed(call, "\n", several=several)
    if of_line is None:
        return calls
    return sequence(marker(_BEGIN), either([of_line, behind_marker(calls)[1]]))


HERMES = Format(name="hermes", parse=_parse, calls=_calls, in_template=(_BEGIN,))
