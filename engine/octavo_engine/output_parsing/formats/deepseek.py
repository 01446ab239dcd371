"""DeepSeek V3 and R1 (`function<sep>NAME`, then JSON as a code block) and V3.1 (`NAME<sep>JSON`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import CallStart, Content, Event
from octavo_engine.output_parsing.formats.call_schema import arguments_schema
from octavo_engine.output_parsing.formats.forms import Form, either, json_form, listed, marker, sequence, words
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_arguments
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, expect, pass_until, read_until, skip_spaces

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_BLOCK = "```json"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    while (yield from pass_until(text, Content, _BEGIN)):
        while (yield from skip_spaces(text)) and (yield from expect(text, _CALL)):
            name = yield from read_until(text, _SEPARATOR)
            if name is not None and name.strip() == "function":
                name = yield from read_until(text, "\n")
                yield from expect(text, _BLOCK)
            if name is None:
                return False
            yield CallStart(name.strip())
            yield from json_arguments(text)
            yield from read_until(text, _CALL_END)
        yield from expect(text, _END)
    return True


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:
    in_block = _BLOCK in template
    calls = either([_in_block(tool) if in_block else _by_name(tool) for tool in tools])
    return sequence(marker(_BEGIN), listed(calls, "\n" if in_block else "", several=several), marker(_END))


def _in_block(tool: Tool) -> Form:
    head = sequence(marker(_CALL), words("function"), marker(_SEPARATOR), words(f"{tool.name}\n{_BLOCK}\n"))
    return sequence(head, json_form(arguments_schema(tool)), words("\n```"), marker(_CALL_END))


def _by_name(tool: Tool) -> Form:
    head = sequence(marker(_CALL), words(tool.name), marker(_SEPARATOR))
    return sequence(head, json_form(arguments_schema(tool)), marker(_CALL_END))


DEEPSEEK = Format(name="deepseek_v3", parse=_parse, calls=_calls, in_template=("<｜tool▁calls▁begin｜>",))
