"""The fields of a chat about tools, and their translation for the chat template, the answer's parser and grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from octavo_engine.json_schema.best_effort import enforceable_schema
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.bodies.field_types import ToolDescription, ToolName
from octavo_engine.server.openai.structured_outputs.fields import OptionalArgumentsSchema
from octavo_engine.server.openai.tools.custom_tools import CustomTool, CustomToolCall
from octavo_engine.structured.grammar import MAX_CHARACTERS

MAX_TOOLS = 128
MAX_CALLS = 128
"""The most calls in one message."""


class FunctionDefinition(Body):
    """A function that the model may call."""

    name: ToolName
    description: ToolDescription | None = None
    parameters: OptionalArgumentsSchema = None
    strict: bool | None = None
    """True if the arguments of calls must follow the whole schema, also where the model decides about calls."""


def run_by_clients(tool: Any) -> Any:
    """Return a tool, or a call of one, before it is checked. Tools that OpenAI's servers run are refused by name."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind not in ("function", "custom"):
        message = "tools of type {kind} are not supported by this version; there are functions and custom tools only"
        raise PydanticCustomError("unsupported_parameter", message, {"place": ("type",), "kind": kind[:100]})
    return tool


class FunctionTool(Body):
    """An entry of `tools` that is a function."""

    type: Literal["function"]
    function: FunctionDefinition

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def strict(self) -> bool:
        """True if the arguments of calls must follow the schema wherever the function is called."""
        return bool(self.function.strict)

    def tool(self) -> Tool:
        """Return the function in the form that the formats of tool calls use."""
        return Tool(self.name, self.function.parameters or {})

    def enforceable(self) -> Tool:
        """Return the function for the grammar of a call: unless it is strict, without what no grammar can enforce."""
        return self.tool() if self.strict else Tool(self.name, enforceable_schema(self.function.parameters or {}))

    def described(self) -> dict[str, Any]:
        """Return the function in the form that chat templates expect."""
        return self.model_dump(exclude_none=True)


ToolDefinition = Annotated[FunctionTool | CustomTool, Field(discriminator="type"), BeforeValidator(run_by_clients)]
"""An entry of `tools`."""


class ToolReference(Body):
    """A tool, by its name."""

    name: ToolName


class NamedFunction(Body):
    """A function that may or must be called."""

    type: Literal["function"]
    function: ToolReference

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name


class NamedCustomTool(Body):
    """A custom tool that may or must be called."""

    type: Literal["custom"]
    custom: ToolReference

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.custom.name


NamedTool = NamedFunction | NamedCustomTool


class AllowedTools(Body):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[Annotated[NamedTool, Field(discriminator="type")]], Field(min_length=1, max_length=MAX_TOOLS)]


class AllowedToolsChoice(Body):
    """The tools that the model may call: the prompt lists no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _known_choice(value: Any) -> Any:
    """Refuse a choice that is neither a known word nor an object with tools, in one sentence about both."""
    kind = value.get("type") if isinstance(value, dict) else None
    named = kind in ("function", "custom", "allowed_tools") and isinstance(value.get(kind), dict)
    if value not in ("none", "auto", "required") and not named:
        raise ValueError(
            'must be "none", "auto", "required", {"type": "function", "function": {"name": "..."}}, the same of a '
            "custom tool, or allowed_tools"
        )
    return value


def _branch(value: Any) -> str:
    return "word" if isinstance(value, str) else str(value["type"])


Choice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[NamedCustomTool, Tag("custom")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    Discriminator(_branch),
    BeforeValidator(_known_choice),
]


class CalledFunction(Body):
    """The function that a call in an earlier answer named."""

    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_CHARACTERS)]


class FunctionCall(Body):
    """A call of a function in an earlier answer."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return the call in the form that chat templates expect: its arguments are an object if their JSON is one.

        A model may write an escaped surrogate that is not half of a pair, and clients send such a call back.
        """
        arguments: Any = self.function.arguments
        try:
            parsed = json.loads(arguments or "{}")
            if re.search(r"\\u[dD]", arguments):  # an unpaired surrogate cannot be tokenized
                parsed = json.loads(_without_unpaired_surrogates(json.dumps(parsed, ensure_ascii=False)))
        except (ValueError, RecursionError):
            parsed = None
        function = {"name": self.function.name, "arguments": parsed if isinstance(parsed, Mapping) else arguments}
        return {"id": self.id, "type": "function", "function": function}


def _typed(call: Any) -> Any:
    """Return a call with its type, which clients may leave out of a call of a function."""
    return {**call, "type": "function"} if isinstance(call, dict) and call.get("type") is None else call


ToolCall = Annotated[
    FunctionCall | CustomToolCall,
    Field(discriminator="type"),
    BeforeValidator(run_by_clients),
    BeforeValidator(_typed),
]
ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS)]


class ToolFields(BaseModel):
    """The fields of a request's body about tools."""

    tools: Annotated[list[ToolDefinition], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> Sequence[ToolDefinition]:
        """The tools that the model may call according to tool_choice."""
        tools = () if self.tool_choice == "none" else self.tools or ()
        if not isinstance(self.tool_choice, AllowedToolsChoice):
            return tools
        allowed = {tool.name for tool in self.tool_choice.allowed_tools.tools}
        return [tool for tool in tools if tool.name in allowed]


@dataclass(frozen=True, slots=True)
class Demand:
    """The tool calls that an answer must consist of."""

    tools: Sequence[Tool]
    """The tools that may be called."""
    several: bool
    """Whether there may be more than one call."""


def demand(fields: ToolFields) -> Demand | None:
    """Return the calls that an answer must consist of; None if it need not.

    APIError 400 if the choice names a tool that does not exist.
    """
    choice, tools = fields.tool_choice, fields.tools or []
    names = {tool.name for tool in tools}
    if len(names) < len(tools):
        raise APIError(400, "tools: two of them have the same name", param="tools")
    if choice in (None, "none", "auto"):
        return None
    if not tools:
        raise APIError(400, "tool_choice: there are no tools to choose from", param="tool_choice")
    chosen = _names_in(choice)
    if (missing := next((name for name in chosen if name not in names), None)) is not None:
        raise APIError(400, f"tool_choice: there is no tool {missing!r} among the tools", param="tool_choice")
    if isinstance(choice, AllowedToolsChoice) and choice.allowed_tools.mode == "auto":
        return None
    if chosen:
        tools = [tool for tool in tools if tool.name in chosen]
    several = not isinstance(choice, NamedTool) and fields.parallel_tool_calls is not False
    return Demand([tool.enforceable() for tool in tools], several)


def _names_in(choice: Any) -> list[str]:
    """Return the names of the tools that a choice lists; none if the choice is a word."""
    if isinstance(choice, NamedTool):
        return [choice.name]
    return [tool.name for tool in choice.allowed_tools.tools] if isinstance(choice, AllowedToolsChoice) else []


def _without_unpaired_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of each surrogate that is not half of a pair."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
