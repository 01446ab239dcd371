"""OLMo 3: calls between tags, one a line, with arguments by name. Nothing is evaluated.

<function_calls>
weather(city="Paris", days=2)
now()
</function_calls>
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event
from octavo_engine.output_parsing.formats.forms import LINE_BREAK, Form, listed, marker, sequence
from octavo_engine.output_parsing.formats.keyword_calls import keyword_calls
from octavo_engine.output_parsing.formats.python_code import is_quickly_parsed
from octavo_engine.output_parsing.formats.pythonic import any_call, python_calls
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText, pass_until, read_until

_BEGIN, _END = "<function_calls>", "</function_calls>"
_JSON_WORDS = {"true": True, "false": False, "null": None}


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:
    """Read calls when their end tag has come. What is between the tags and is no list of calls is content."""
    while (yield from pass_until(text, Content, _BEGIN)):
        text.mark()
        source = yield from read_until(text, _END)
        held = text.read_since_mark()
        calls = None if source is None else _calls(source, tools)
        if calls is None:
            yield Content(_BEGIN + held)
        for name, arguments in calls or ():
            yield CallStart(name)
            yield CallArguments(arguments)
    return True


def _calls(source: str, tools: Mapping[str, Tool]) -> list[tuple[str, str]] | None:
    """Return the names and arguments as JSON; None if it is anything but calls of these tools."""
    lines = [line for line in source.split("\n") if line.strip()]
    found = keyword_calls(f"[{', '.join(lines)}]", tools)
    if found is not None or not is_quickly_parsed(source):
        return found
    try:
        statements = ast.parse(source.strip()).body
        values = [_WithJSONWords().visit(each.value) for each in statements if isinstance(each, ast.Expr)]
        return python_calls(values, tools) if len(values) == len(statements) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _WithJSONWords(ast.NodeTransformer):
    """Replaces the words true, false and null of JSON by Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _form(tools: Sequence[Tool], template: str, *, several: bool) -> Form:  # noqa: ARG001
    return sequence(
        marker(_BEGIN), LINE_BREAK, listed(any_call(tools), "\n", several=several), LINE_BREAK, marker(_END)
    )


OLMO3 = Format(name="olmo3", parse=_parse, calls=_form, in_template=(_BEGIN,))
