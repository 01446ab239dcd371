"""Calls of custom tools whose input follows a Lark grammar: the tool's name on a line, then the input.

The input ends with the answer. It cannot be a JSON string: llguidance ends a lexeme at the first character that is none
of its own, and with JSON's escapes the backslash of the next lexeme might still be one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from octavo_engine.output_parsing.events import CallArguments, CallStart, Event
from octavo_engine.output_parsing.formats.forms import Form, either, lark_form, sequence, words
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, expect


def divided(tools: Sequence[Tool]) -> tuple[Sequence[Tool], Sequence[Tool]]:
    """Return the tools that take JSON, and those whose input follows a Lark grammar."""
    return [tool for tool in tools if not tool.lark], [tool for tool in tools if tool.lark]


def text_call_form(tools: Sequence[Tool]) -> Form:
    """Return the form of a call of one of these tools, which have Lark grammars."""
    return either([sequence(words(f"{tool.name}\n"), lark_form(tool.lark)) for tool in tools])


def text_call(text: StreamedText, tools: Iterable[Tool]) -> Steps[Event]:
    """Yield the call of one of the tools whose input follows a Lark grammar; False if none comes: nothing is read."""
    for tool in tools:
        if tool.lark and (yield from expect(text, f"{tool.name}\n")):
            yield CallStart(tool.name)
            yield CallArguments('{"input": "')
            while not text.ended or len(text):
                if len(text):
                    yield CallArguments(json.dumps(text.take(), ensure_ascii=False)[1:-1])
                else:
                    yield MORE
            yield CallArguments('"}')
            return True
    return False
