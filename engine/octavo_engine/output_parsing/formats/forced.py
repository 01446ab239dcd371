"""A JSON list of calls, `[{"name": ..., "arguments": {...}}]`, for tool calls that a request demands.

A grammar enforces it where the model's own format is not known, or cannot hold the arguments to the tools' schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import Event
from octavo_engine.output_parsing.formats.call_schema import call_list_schema
from octavo_engine.output_parsing.formats.forms import Form, either, json_form
from octavo_engine.output_parsing.formats.text_calls import divided, text_call, text_call_form
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_calls, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, skip_spaces


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    _, of_text = divided([*tools.values()])
    if of_text and (yield from skip_spaces(text)) and (yield from text_call(text, of_text)):
        return True
    return (yield from or_content(text, json_calls(text)))


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    of_json, of_text = divided(tools)
    forms = [json_form(call_list_schema(of_json, several=several))] if of_json else []
    return either([*forms, text_call_form(of_text)] if of_text else forms)


FORCED = Format(name="forced", parse=_parse, calls=_calls, in_template=())
