"""Custom tools of OpenAI's API, whose input is a text.

The model calls them as functions with one argument, `input`. A grammar holds each call to that form, and the answer has
the argument's text alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.bodies.field_types import ToolDescription, ToolName
from octavo_engine.structured.grammar import MAX_CHARACTERS


class TextInput(Body):
    """An input that is any text."""

    type: Literal["text"]


class InputGrammar(Body):
    """A grammar, and the language in which it is written."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class GrammarInput(Body):
    """An input that follows a grammar."""

    type: Literal["grammar"]
    grammar: InputGrammar


class CustomDefinition(Body):
    """A tool that takes a text."""

    name: ToolName
    description: ToolDescription | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


class CustomTool(Body):
    """An entry of `tools` whose input is a text."""

    type: Literal["custom"]
    custom: CustomDefinition

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.custom.name

    @property
    def strict(self) -> bool:
        """True: a call that is not in the form of a custom tool's has no input."""
        return True

    def tool(self) -> Tool:
        """Return the tool in the form that the formats of tool calls use."""
        form = self.custom.format
        lark = form.grammar.definition if isinstance(form, GrammarInput) and form.grammar.syntax == "lark" else ""
        return Tool(self.name, self._parameters(), custom=True, lark=lark)

    def enforceable(self) -> Tool:
        """Return the tool for the grammar of a call, which holds the input to its whole format."""
        return self.tool()

    def described(self) -> dict[str, Any]:
        """Return the tool in the form that chat templates expect: as a function."""
        function = {"name": self.name, "description": self.custom.description, "parameters": self._parameters()}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}

    def _parameters(self) -> dict[str, Any]:
        """Return the JSON schema of the function's arguments."""
        schema: dict[str, Any] = {"type": "string"}
        if isinstance(self.custom.format, GrammarInput):
            grammar = self.custom.format.grammar
            if grammar.syntax == "regex":
                schema["pattern"] = _anchored(grammar.definition)
            else:
                schema["description"] = f"A text of this Lark grammar:\n{grammar.definition}"
        return {"type": "object", "properties": {"input": schema}, "required": ["input"], "additionalProperties": False}


def _anchored(regex: str) -> str:
    """Return the pattern of texts that a regular expression matches in full, whether it has anchors or not."""
    inner = regex.removeprefix("^")
    if inner.endswith("$") and (len(inner) - len(inner[:-1].rstrip("\\"))) % 2:
        inner = inner[:-1]
    return f"^(?:{inner})$"


class CalledCustomTool(Body):
    """The custom tool that a call in an earlier answer named."""

    name: Annotated[str, Field(max_length=256)]
    input: Annotated[str, Field(max_length=MAX_CHARACTERS)]


class CustomToolCall(Body):
    """A call of a custom tool in an earlier answer."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["custom"]
    custom: CalledCustomTool

    def for_template(self) -> dict[str, Any]:
        """Return the call in the form that chat templates expect: of a function."""
        function = {"name": self.custom.name, "arguments": {"input": self.custom.input}}
        return {"id": self.id, "type": "function", "function": function}
