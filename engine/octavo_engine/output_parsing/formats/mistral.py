"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`; later `[TOOL_CALLS]NAME[ARGS]{...}` for each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import CallStart, Content, Event
from octavo_engine.output_parsing.formats.call_schema import arguments_schema, call_list_schema
from octavo_engine.output_parsing.formats.forms import (
    Form,
    either,
    json_form,
    listed,
    marker,
    optional,
    pattern,
    sequence,
    words,
)
from octavo_engine.output_parsing.formats.tool import LONGEST_NAME, Format, Tool
from octavo_engine.output_parsing.json_calls import json_arguments, json_calls, or_content
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, pass_until, skip_spaces

_BEGIN, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_LENGTH = 9


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    while (yield from pass_until(text, Content, _BEGIN)):
        if not (yield from skip_spaces(text)):
            return False
        calls = json_calls(text) if text[0] in "[{" else _named_call(text)
        yield from or_content(text, calls, _BEGIN)
    return True


def _named_call(text: StreamedText) -> Steps[Event]:
    """Yield a name, then the arguments. An id between them is read and left out: each call gets one of ours."""
    while (at := text.find("{")) < 0:
        if text.ended or len(text) > LONGEST_NAME:
            text.take()
            return False
        yield MORE
    yield CallStart(text.take(at).removesuffix(_ARGUMENTS).partition(_ID)[0].strip())
    return (yield from json_arguments(text))


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:
    if _ARGUMENTS not in template:
        return sequence(marker(_BEGIN), pattern(" ?"), json_form(call_list_schema(tools, several=several)))
    number = [optional(sequence(marker(_ID), pattern(f"[a-zA-Z0-9]{{{_ID_LENGTH}}}")))] if _ID in template else []
    calls = [
        sequence(words(tool.name), *number, marker(_ARGUMENTS), json_form(arguments_schema(tool))) for tool in tools
    ]
    return listed(sequence(marker(_BEGIN), either(calls)), "", several=several)


MISTRAL = Format(name="mistral", parse=_parse, calls=_calls, in_template=(_BEGIN,), id_length=_ID_LENGTH)
