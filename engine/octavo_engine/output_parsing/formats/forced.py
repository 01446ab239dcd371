"""Calls that a request demands (tool_choice required, or a tool by name): a grammar holds the model to this JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_engine.output_parsing.events import Event
from octavo_engine.output_parsing.formats.tool import Format, Tool
from octavo_engine.output_parsing.json_calls import json_calls, or_content
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText


def _parse(text: StreamedText, tools: Mapping[str, Tool]) -> Steps[Event]:  # noqa: ARG001
    return (yield from or_content(text, json_calls(text)))


def forced_schema(tools: Sequence[Tool], *, several: bool) -> dict[str, Any]:
    """The schema of a list of calls of these tools; of one call, unless `several`."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.name}, "arguments": _arguments(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    most = {} if several else {"maxItems": 1}
    return {"type": "array", "items": calls[0] if len(calls) == 1 else {"anyOf": calls}, "minItems": 1, **most}


def _arguments(tool: Tool) -> Mapping[str, Any]:
    return {"type": "object", **tool.parameters}


FORCED = Format(name="forced", parse=_parse, in_template=())
