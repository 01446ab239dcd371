"""JSON schemas of tool calls: of a call with its name and arguments, and of the arguments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.json_schema.walk import changed_schema, only_lists
from octavo_engine.output_parsing.formats.forms import MOST_CALLS, NoFormError
from octavo_engine.output_parsing.formats.tool import Tool


def call_list_schema(tools: Sequence[Tool], *, several: bool) -> dict[str, Any]:
    """Return the schema of a list of at most MOST_CALLS calls of these tools; of one call, unless `several`."""
    most = MOST_CALLS if several else 1
    return {"type": "array", "items": call_schema(tools, "/items"), "minItems": 1, "maxItems": most}


def call_schema(tools: Sequence[Tool], pointer: str = "", arguments: str = "arguments") -> dict[str, Any]:
    """Return the schema of a call of one of these tools, for a schema that has it at this JSON pointer.

    `arguments` is the name of the field with the arguments.
    """
    several = len(tools) > 1
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                arguments: arguments_schema(
                    tool, f"{pointer}{f'/anyOf/{place}' if several else ''}/properties/{arguments}"
                ),
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for place, tool in enumerate(tools)
    ]
    return {"anyOf": calls} if several else calls[0]


def arguments_schema(tool: Tool, pointer: str = "") -> dict[str, Any]:
    """Return the schema of a call's arguments, for a schema that has it at this JSON pointer.

    Arguments that the tool's schema does not list are left out where it does not speak of others: a function that is
    called with them fails, and small models make them up. A tool without a schema has none, as in OpenAI's API.
    NoFormError if it takes a text that follows a Lark grammar.
    """
    if tool.lark:
        raise NoFormError(f"the input of {tool.name} follows a Lark grammar, which no JSON schema can say")
    schema = {**tool.parameters, "type": "object"}
    if only_lists({"properties": {}, **schema}):
        schema["additionalProperties"] = False
    schema.pop("$id", None)  # its references would be looked for in the document of this name
    return _moved(schema, pointer)


def part_of_schema(part: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a schema as a schema of its own, with the whole one if the part may refer to it."""
    if not refers(part):
        return part
    moved = _moved(part, "/$defs/whole")
    root = {key: value for key, value in whole.items() if key != "$id"}
    return {**moved, "$defs": {"whole": _moved(root, "/$defs/whole")}}


def refers(schema: Any) -> bool:
    """Return whether a part of a schema refers to another part."""
    if isinstance(schema, Mapping):
        return "$ref" in schema or any(map(refers, schema.values()))
    return isinstance(schema, list) and any(map(refers, schema))


def _moved(schema: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    """Return a schema that is moved to `pointer` of another one, with references to its root adjusted."""

    def move(each: dict[str, Any]) -> dict[str, Any]:
        target = each.get("$ref")
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            return {**each, "$ref": f"#{pointer}{target[1:]}"}
        return each

    moved: dict[str, Any] = changed_schema(schema, move)
    return moved
