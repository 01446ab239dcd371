"""Llama 3.2 and 4, OLMo 3: calls as a Python list, `[f(a=1, b="x"), g()]`, of constants alone. Nothing is evaluated."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, expect, skip_spaces

_TAGS = ("<|python_start|>", "<|python_tag|>")
_LONGEST = 1 << 16


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    """Hold an answer that begins with [ back until the list is complete, since only then it is known to be calls."""
    yield from skip_spaces(text)
    for tag in _TAGS:
        yield from expect(text, tag)
    held = ""
    if len(text) and text[0] == "[":
        while not text.ended:
            yield MORE
        held = text.take()
        if (calls := _calls(held.strip().removesuffix("<|python_end|>"), tools)) is not None:
            for name, arguments in calls:
                yield CallStart(name)
                yield CallArguments(arguments)
            return True
    yield Content(held)
    while not text.ended or len(text):
        if len(text):
            yield Content(text.take())
        else:
            yield MORE
    return True


def _calls(source: str, tools: Mapping[str, Tool]) -> list[tuple[str, str]] | None:
    """Return the names and arguments as JSON; None if it is anything but a list of calls of these tools."""
    if len(source) > _LONGEST:
        return None
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call(element, tools) for element in tree.elts]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _call(element: ast.expr, tools: Mapping[str, Tool]) -> tuple[str, str]:
    if not isinstance(element, ast.Call) or element.args:
        raise ValueError("is no call with arguments by name")
    name = ast.unparse(element.func)
    if name not in tools:
        raise ValueError("is no tool")
    arguments: dict[str, Any] = {str(each.arg): ast.literal_eval(each.value) for each in element.keywords}
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


PYTHONIC = Format(name="pythonic", parse=_parse, in_template=("[func_name1(",))
