"""Forms of arguments that a model writes one by one: strings as plain text, other values as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from octavo_engine.json_schema.walk import ANNOTATIONS, LISTING, names_within
from octavo_engine.output_parsing.formats.call_schema import part_of_schema, refers
from octavo_engine.output_parsing.formats.forms import (
    LINE_BREAK,
    Form,
    NoFormError,
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
from octavo_engine.output_parsing.formats.tool import Tool

_OF_TEXT = ANNOTATIONS | {"type", "minLength", "maxLength"}
"""Keywords of a string's schema that a plain text can follow; others, such as `pattern`, need JSON."""
_OF_CHOICE = _OF_TEXT - {"minLength", "maxLength"}
"""Keywords beside `enum` that change nothing about which of its texts may follow."""
_ANY_NAME = pattern(r"[^<>\s]{1,64}")
MOST_ARGUMENTS = 64
"""The most arguments of a call of a tool that takes any."""
_MOST_COPIED = 1 << 17
"""The most characters of copies of a tool's schema: each argument that refers to it has one."""


def takes_anything(tool: Tool) -> bool:
    """Return whether the schema of a tool says only that it takes any arguments."""
    schema = {**tool.parameters, "type": "object"}
    return schema.keys() == {"type", "additionalProperties"} and schema["additionalProperties"] in (True, {})


def arguments_of(tool: Tool) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name of each argument, its schema, and whether it is required.

    NoFormError if the schema does more than list its properties: then which arguments may be there depends on others.
    """
    if tool.lark:
        raise NoFormError(f"the input of {tool.name} follows a Lark grammar")
    schema = {**tool.parameters, "type": "object"}
    listed, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(listed, Mapping) or not schema.keys() <= LISTING | {"additionalProperties"}:
        raise NoFormError(f"the schema of {tool.name} does more than list properties")
    if not names_within(required, listed):
        raise NoFormError(f"the schema of {tool.name} demands what its properties do not list")
    if not listed and schema.get("additionalProperties", False) is not False:
        raise NoFormError(f"the schema of {tool.name} allows arguments of any name")
    if (copies := sum(map(refers, listed.values()))) and copies * len(json.dumps(tool.parameters)) > _MOST_COPIED:
        raise NoFormError(f"the schema of {tool.name} is referred to by {copies} of its arguments")
    for name, each in listed.items():
        yield name, each, name in required


def argument_schema(schema: Any, tool: Tool) -> Mapping[str, Any]:
    """Return the schema of one argument of a tool as a schema of its own."""
    if not isinstance(schema, Mapping):
        return {} if schema is True else {"not": {}}
    return part_of_schema(schema, tool.parameters)


def text_arguments(tool: Tool, begin: Callable[[Form], Form], end: str, behind: Form) -> list[Form]:
    """Return the forms of a tool's arguments, in the order of its schema.

    `begin` returns the form of what comes before the value of an argument, with the form of its name; after the value
    comes the marker `end`, and then the form `behind`. NoFormError if plain text cannot follow a schema.
    """
    if takes_anything(tool):
        return [optional(listed(sequence(begin(_ANY_NAME), text_until(end), behind), "", most=MOST_ARGUMENTS))]
    parts: list[Form] = []
    for name, schema, required in arguments_of(tool):
        if not name or name != name.strip() or any(sign in name for sign in "<>\n"):
            raise NoFormError(f"{name!r} cannot be written as the name of an argument")
        part = sequence(begin(words(name)), _value(schema, tool, end), behind)
        parts.append(part if required else optional(part))
    return parts


def _value(schema: Any, tool: Tool, end: str) -> Form:
    """Return the form of a value with its end. A string is plain text, as `Tool.argument` reads it."""
    if not isinstance(schema, Mapping) or schema.get("type") != "string":
        return sequence(json_form(argument_schema(schema, tool)), LINE_BREAK, marker(end))
    if schema.keys() <= _OF_TEXT:
        return text_until(end, *_lengths(schema))
    kind = "const" if "const" in schema else "enum"
    if not schema.keys() <= {kind, *_OF_CHOICE}:
        raise NoFormError(f"plain text cannot follow the schema {dict(schema)}")
    values = [schema["const"]] if kind == "const" else schema["enum"]
    if not isinstance(values, list) or not values:
        raise NoFormError(f"{values!r} is no list of values")
    if not all(isinstance(value, str) and value and end not in value and "\n" not in value for value in values):
        raise NoFormError(f"plain text cannot be each of {values}")
    return sequence(either([words(value) for value in values]), LINE_BREAK, marker(end))


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the least and the greatest length of a text; NoFormError if the schema has no such numbers."""
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if type(least) is not int or least < 0 or not (most is None or (type(most) is int and most >= least)):
        raise NoFormError(f"{least!r} to {most!r} are not lengths of a text")
    return least, most
