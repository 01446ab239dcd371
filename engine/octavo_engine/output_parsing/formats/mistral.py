"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`; later `[TOOL_CALLS]NAME[ARGS]{...}` for each call."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.output_parsing.events import CallStart, Content, Event
from octavo_engine.output_parsing.formats.tool import LONGEST_NAME, Format, Tool
from octavo_engine.output_parsing.json_calls import json_arguments, json_calls, or_content
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, pass_until, skip_spaces

_BEGIN, _ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    while (yield from pass_until(text, Content, _BEGIN)):
        if not (yield from skip_spaces(text)):
            return False
        calls = json_calls(text) if text[0] in "[{" else _named_call(text)
        yield from or_content(text, calls, _BEGIN)
    return True


def _named_call(text: StreamedText) -> Steps[Event]:
    """Yield a name, then the arguments."""
    while (at := text.find("{")) < 0:
        if text.ended or len(text) > LONGEST_NAME:
            text.take()
            return False
        yield MORE
    yield CallStart(text.take(at).removesuffix(_ARGUMENTS).strip())
    return (yield from json_arguments(text))


MISTRAL = Format(name="mistral", parse=_parse, in_template=(_BEGIN,), id_length=9)
