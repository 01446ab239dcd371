"""Llama 3.2 and 4: calls as a Python list, `[f(a=1, b="x"), g()]`, of constants alone. Nothing is evaluated."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.argument_forms import (
    MOST_ARGUMENTS,
    argument_schema,
    arguments_of,
    takes_anything,
)
from octavo_engine.output_parsing.formats.forms import (
    MOST_CALLS,
    Form,
    NoFormError,
    any_text,
    either,
    json_form,
    listed,
    marker,
    optional,
    pattern,
    sequence,
    text_until,
    words,
)
from octavo_engine.output_parsing.formats.keyword_calls import ARGUMENT_NAME, keyword_calls
from octavo_engine.output_parsing.formats.python_code import is_quickly_parsed
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.streamed_text import MORE, Steps, StreamedText, pass_until, skip_spaces

_TAGS = ("<|python_start|>", "<|python_tag|>")
_END = "<|python_end|>"
_COMMENT = r"#[^\n]*\n"
_ANY_ARGUMENT = sequence(
    pattern(ARGUMENT_NAME.pattern), words("="), either([*map(words, ("True", "False", "None")), json_form({})])
)
_MOST_OPTIONAL = 32
"""The most optional arguments of a tool none of whose arguments is required: their form grows with the square."""


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    yield from skip_spaces(text)
    yield from _list(text, tools)
    while (yield from pass_until(text, Content, *_TAGS)):
        yield from _list(text, tools)
    return True


def _list(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    """Hold text that begins with [ back until the answer ends, since only then it is known to be calls."""
    while not len(text) and not text.ended:
        yield MORE
    if not len(text) or text[0] != "[":
        return False
    while not text.ended:
        yield MORE
    held = text.take()
    source = held.strip().removesuffix(_END)
    calls = keyword_calls(source, tools) or _calls(source, tools)
    if calls is None:
        yield Content(held)
        return False
    for name, arguments in calls:
        yield CallStart(name)
        yield CallArguments(arguments)
    return True


def _calls(source: str, tools: Mapping[str, Tool]) -> list[tuple[str, str]] | None:
    """Return the names and arguments as JSON; None if it is not a list of calls of these tools, or a long one.

    A list of any length is read if its values are JSON (keyword_calls.py).
    """
    if not is_quickly_parsed(source):
        return None
    try:
        tree = ast.parse(source, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return python_calls(tree.elts, tools)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def python_calls(elements: Sequence[ast.expr], tools: Mapping[str, Tool]) -> list[tuple[str, str]] | None:
    """Return the names and arguments as JSON of calls of these tools; None if there is none, or anything else."""
    try:
        return [_call(element, tools) for element in elements] or None
    except (TypeError, ValueError, RecursionError, MemoryError):  # TypeError: a set is no JSON
        return None


def _call(element: ast.expr, tools: Mapping[str, Tool]) -> tuple[str, str]:
    if not isinstance(element, ast.Call) or element.args:
        raise ValueError("is no call with arguments by name")
    name = ast.unparse(element.func)
    if name not in tools:
        raise ValueError("is no tool")
    if any(each.arg is None for each in element.keywords):
        raise ValueError("has arguments without names, **{...}")
    arguments: dict[str, Any] = {str(each.arg): ast.literal_eval(each.value) for each in element.keywords}
    return name, json.dumps(arguments, ensure_ascii=False, allow_nan=False)


def _list_of_calls(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    return sequence(words("["), listed(any_call(tools), ", ", several=several), words("]"))


def any_call(tools: Sequence[Tool]) -> Form:
    """Return the form of a call of one of the tools; NoFormError if the format cannot follow a tool's schema."""
    return either([sequence(words(f"{tool.name}("), *_arguments_form(tool)) for tool in tools])


def _arguments_form(tool: Tool) -> Sequence[Form]:
    """Return the forms of what follows the bracket that opens a call's arguments."""
    if takes_anything(tool):
        return optional(listed(_ANY_ARGUMENT, ", ", most=MOST_ARGUMENTS)), words(")")
    required: list[Form] = []
    others: list[Form] = []
    for name, schema, is_required in arguments_of(tool):
        if not ARGUMENT_NAME.fullmatch(name):
            raise NoFormError(f"{name!r} is not the name of an argument in Python")
        boolean = schema == {"type": "boolean"}
        value = either([words("True"), words("False")]) if boolean else json_form(argument_schema(schema, tool))
        (required if is_required else others).append(sequence(words(f"{name}="), value))
    return *_with_commas(required, others), words(")")


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


def _text_or_calls(tools: Sequence[Tool], *, several: bool, unless: str) -> Form:
    """Return the form of a list of calls, or of any text, behind whose tag calls follow.

    No text begins as a list that calls a tool otherwise. The beginning of a list is one lexeme up to the arguments,
    since llguidance's lexer takes the longest lexeme, and this one ends where a text has to be another one.
    """
    names = "|".join(re.escape(tool.name) for tool in tools)
    called = rf"\s*\[([\s(\\]|{_COMMENT})*({names})([\s)\\]|{_COMMENT})*\("
    unless = f"{called}|{unless}" if unless else called
    calls = _list_of_calls(tools, "", several=several)
    begun = [sequence(pattern(rf"\s{{0,4}}\[{re.escape(tool.name)}\("), *_arguments_form(tool)) for tool in tools]
    others = listed(sequence(words(", "), any_call(tools)), "", most=MOST_CALLS - 1)
    more = [optional(others)] if several else []
    tagged = [sequence(text_until(tag, unless=unless), calls, optional(marker(_END))) for tag in _TAGS]
    return either([any_text(unless), *tagged, sequence(either(begun), *more, words("]"))])


PYTHONIC = Format(
    name="pythonic",
    parse=_parse,
    calls=_list_of_calls,
    unmarked=_text_or_calls,
    in_template=("[func_name1(",),
)
