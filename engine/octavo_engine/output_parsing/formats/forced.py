"""Tool calls that a request demands (tool_choice required, or a named tool): a grammar enforces this JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.output_parsing.events import Event
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_calls, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText

_LISTING = {"$id", "$schema", "$defs", "definitions", "title", "description", "type", "properties", "required"}
"""Keywords of a schema that only lists properties: with no others, `properties` has all its fields."""
_VALUES = {"const", "enum", "default", "examples"}
"""Keywords whose values are no schemas."""
_BY_NAME = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
"""Keywords whose values are schemas by names, which may look like keywords."""


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    return (yield from or_content(text, json_calls(text)))


def forced_schema(tools: Sequence[Tool], *, several: bool) -> dict[str, Any]:
    """Return the schema of a list of calls of these tools; of one call, unless `several`."""
    most = {} if several else {"maxItems": 1}
    return {"type": "array", "items": call_schema(tools, "/items"), "minItems": 1, **most}


def call_schema(tools: Sequence[Tool], pointer: str = "") -> dict[str, Any]:
    """Return the schema of a call of one of these tools, for a schema that has it at this JSON pointer."""
    several = len(tools) > 1
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                "arguments": _arguments(tool, f"{pointer}/anyOf/{place}" if several else pointer),
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for place, tool in enumerate(tools)
    ]
    return {"anyOf": calls} if several else calls[0]


def _arguments(tool: Tool, call: str) -> Mapping[str, Any]:
    """Return the schema of a call's arguments, for a schema that has the call's at the JSON pointer `call`.

    Arguments that the tool's schema does not list are left out where it does not speak of others: a function that is
    called with them fails, and small models make them up. A tool without a schema has none, as in OpenAI's API.
    """
    schema = {"type": "object", **tool.parameters}
    names = schema.get("properties", {})
    if schema.keys() <= _LISTING and isinstance(names, Mapping) and _within(schema.get("required", ()), names):
        schema["additionalProperties"] = False
    schema.pop("$id", None)  # its references would be looked for in the document of this name
    return {key: _moved_keyword(key, value, f"{call}/properties/arguments") for key, value in schema.items()}


def _within(required: Any, names: Mapping[str, Any]) -> bool:
    return isinstance(required, list | tuple) and all(isinstance(name, str) and name in names for name in required)


def _moved(schema: Any, pointer: str) -> Any:
    """Return a part of a schema that is moved to `pointer` of another one, with references to its root adjusted."""
    if isinstance(schema, list):
        return [_moved(each, pointer) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _moved_keyword(key, value, pointer) for key, value in schema.items()}


def _moved_keyword(key: str, value: Any, pointer: str) -> Any:
    if key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/")):
        return f"#{pointer}{value[1:]}"
    if key in _BY_NAME and isinstance(value, Mapping):
        return {name: _moved(each, pointer) for name, each in value.items()}
    return value if key in _VALUES else _moved(value, pointer)


FORCED = Format(name="forced", parse=_parse, in_template=())
