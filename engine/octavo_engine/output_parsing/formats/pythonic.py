"""Llama 3.2 and 4, OLMo 3: calls as a Python list, `[f(a=1, b="x"), g()]`, of constants alone. Nothing is evaluated."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.argument_forms import argument_schema, arguments_of
from octavo_engine.output_parsing.formats.forms import (
    Form,
    NoFormError,
    either,
    json_form,
    listed,
    optional,
    sequence,
    words,
)
from octavo_engine.output_parsing.formats.keyword_calls import ARGUMENT_NAME, keyword_calls
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, expect, skip_spaces

_TAGS = ("<|python_start|>", "<|python_tag|>")
_LONGEST = 1 << 16
"""Characters that are parsed as Python; a longer list has to have JSON values."""
_MOST_OPTIONAL = 32
"""The most optional arguments of a tool none of whose arguments is required: their form grows with the square."""


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
        source = held.strip().removesuffix("<|python_end|>")
        if (calls := keyword_calls(source, tools) or _calls(source, tools)) is not None:
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


def _list_of_calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    return sequence(words("["), listed(either([*map(_call_form, tools)]), ", ", several=several), words("]"))


def _call_form(tool: Tool) -> Form:
    required: list[Form] = []
    others: list[Form] = []
    for name, schema, is_required in arguments_of(tool):
        if not ARGUMENT_NAME.fullmatch(name):
            raise NoFormError(f"{name!r} is not the name of an argument in Python")
        boolean = schema == {"type": "boolean"}
        value = either([words("True"), words("False")]) if boolean else json_form(argument_schema(schema, tool))
        (required if is_required else others).append(sequence(words(f"{name}="), value))
    return sequence(words(f"{tool.name}("), *_with_commas(required, others), words(")"))


def _with_commas(required: Sequence[Form], others: Sequence[Form]) -> list[Form]:
    """Return the forms of required arguments and after them any of the others, with commas between."""
    comma = words(", ")
    after = [optional(sequence(comma, other)) for other in others]
    if required:
        first, *rest = required
        return [first, *(part for each in rest for part in (comma, each)), *after]
    if len(others) > _MOST_OPTIONAL:
        raise NoFormError("has too many optional arguments")
    beginnings = [sequence(other, *after[place + 1 :]) for place, other in enumerate(others)]
    return [optional(either(beginnings))] if beginnings else []


PYTHONIC = Format(name="pythonic", parse=_parse, calls=_list_of_calls, in_template=("[func_name1(",))
