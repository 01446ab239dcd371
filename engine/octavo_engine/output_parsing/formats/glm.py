"""GLM-4.5 and later: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.argument_forms import text_arguments
from octavo_engine.output_parsing.formats.forms import LINE_BREAK, Form, either, listed, marker, sequence, words
from octavo_engine.output_parsing.formats.tool import LONGEST_NAME, Format, Tool, tool_named
from octavo_engine.output_parsing.streamed_text import (
    MORE,
    Steps,
    StreamedText,
    expect,
    pass_until,
    read_until,
    skip_spaces,
)

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    while (yield from pass_until(text, Content, _BEGIN)):
        name = yield from _name(text)
        if not len(text):
            return False
        yield CallStart(name)
        if not (yield from _arguments(text, tool_named(tools, name))):
            return False
    return True


def _arguments(text: StreamedText, tool: Tool) -> Steps[Event]:
    """Yield the arguments as one JSON object, each when it is complete; False if the text ends before they do."""
    opening = "{"
    while (yield from skip_spaces(text)) and (yield from expect(text, _KEY)):
        key, _ = (yield from read_until(text, _KEY_END)), (yield from read_until(text, _VALUE))
        value = yield from read_until(text, _VALUE_END)
        if key is None or value is None:
            return False
        yield CallArguments(opening + tool.argument(key.strip(), value.strip("\n")))
        opening = ", "
    if (yield from read_until(text, _END)) is None:
        return False
    yield CallArguments("}" if opening == ", " else "{}")
    return True


def _name(text: StreamedText) -> Generator[None, None, str]:
    """Read the tool's name: the text before the first tag."""
    while (at := text.find("<")) < 0 and not text.ended and len(text) < LONGEST_NAME:
        yield MORE
    return text.take(at if at >= 0 else None).strip()


def _calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    return listed(either([*map(_call, tools)]), "\n", several=several)


def _call(tool: Tool) -> Form:
    def begin(name: Form) -> Form:
        return sequence(marker(_KEY), name, marker(_KEY_END), LINE_BREAK, marker(_VALUE))

    arguments = text_arguments(tool, begin, _VALUE_END, LINE_BREAK)
    return sequence(marker(_BEGIN), words(tool.name), LINE_BREAK, *arguments, marker(_END))


GLM = Format(name="glm45", parse=_parse, calls=_calls, in_template=(_BEGIN, _KEY))
