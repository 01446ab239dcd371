"""Qwen3-Coder's XML: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.argument_forms import text_arguments
from octavo_engine.output_parsing.formats.forms import Form, either, listed, marker, sequence, words
from octavo_engine.output_parsing.formats.tool import Format, Tool, tool_named
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, expect, pass_until, read_until, skip_spaces

_BEGIN, _END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_OUTER_BEGIN, _OUTER_END = "<tool_call>", "</tool_call>"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    while (yield from pass_until(text, Content, _OUTER_BEGIN, _BEGIN)):
        yield from skip_spaces(text)
        yield from expect(text, _BEGIN)  # where the outer tag was there
        if (name := (yield from read_until(text, ">"))) is None:
            return False
        yield CallStart(name.strip())
        if not (yield from _arguments(text, tool_named(tools, name.strip()))):
            return False
        yield from skip_spaces(text)
        yield from expect(text, _OUTER_END)
    return True


def _arguments(text: StreamedText, tool: Tool) -> Steps[Event]:
    """Yield the parameters as one JSON object, each when it is complete; False if the text ends before they do."""
    opening = "{"
    while (yield from skip_spaces(text)) and (yield from expect(text, _PARAMETER)):
        key, value = (yield from read_until(text, ">")), (yield from read_until(text, _PARAMETER_END))
        if key is None or value is None:
            return False
        yield CallArguments(opening + tool.argument(key.strip(), value.removeprefix("\n").removesuffix("\n")))
        opening = ", "
    if (yield from read_until(text, _END)) is None:
        return False
    yield CallArguments("}" if opening == ", " else "{}")
    return True


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    call = sequence(marker(_OUTER_BEGIN), words("\n"), either([*map(_call, tools)]), words("\n"), marker(_OUTER_END))
    return listed(call, "\n", several=several)


def _call(tool: Tool) -> Form:
    def begin(name: Form) -> Form:
        return sequence(words(_PARAMETER), name, words(">\n"))

    arguments = text_arguments(tool, begin, _PARAMETER_END, words("\n"))
    return sequence(words(f"{_BEGIN}{tool.name}>\n"), *arguments, words(_END))


QWEN3_CODER = Format(name="qwen3_coder", parse=_parse, calls=_calls, in_template=(_OUTER_BEGIN, _BEGIN))
