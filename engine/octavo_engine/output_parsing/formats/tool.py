"""A tool that a model may call, and what is common to the ways in which models write calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo_engine.output_parsing.events import Event
from octavo_engine.output_parsing.formats.forms import Form, text_or_marked
from octavo_engine.output_parsing.streamed_text import Steps, StreamedText

LONGEST_NAME = 256
"""Characters; what is longer is no name."""
ANYTHING: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""The schema of a tool that takes any arguments."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function with the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    custom: bool = False
    """Whether it is a custom tool of OpenAI's API: the answer shows the text of its only argument, `input`."""
    lark: str = ""
    """The Lark grammar that a custom tool's input follows; empty if `parameters` says everything about it."""

    def argument(self, name: str, value: str) -> str:
        """Return `"name": value` in JSON, for an argument that a model wrote as plain text; the schema has its type."""
        properties = self.parameters.get("properties")
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        if isinstance(schema, Mapping) and schema.get("type") == "string":
            return _member(name, value)
        try:
            return _member(name, json.loads(value))
        except (ValueError, RecursionError):
            return _member(name, value)


def _member(name: str, value: Any) -> str:
    return json.dumps({name: value}, ensure_ascii=False, allow_nan=False)[1:-1]


class Calls(Protocol):
    """Makes the form of an answer that consists of calls, for its grammar."""

    def __call__(self, tools: Sequence[Tool], template: str, *, several: bool) -> Form:
        """Return the form of one call of one of the tools, or with `several` of at least one.

        `template` is the source of the model's chat template, as some formats have several variants. Raises NoFormError
        if the format cannot hold the arguments of a tool to their schema.
        """
        ...


class TextOrCalls(Protocol):
    """Makes the form of an answer that is any text and may have calls, for its grammar."""

    def __call__(self, tools: Sequence[Tool], *, several: bool, unless: str) -> Form:
        """Return the form of any text, or of one call or with `several` of at least one, perhaps after text.

        The regular expression `unless`, if it is not empty, matches no beginning of the text. Whatever `Format.parse`
        reads as a call of one of the tools has to follow its schema. Raises NoFormError as `Calls` does.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The way in which a family of models writes tool calls."""

    name: str
    """The name, as in vLLM's --tool-call-parser."""
    parse: Callable[[StreamedText, Mapping[str, Tool]], Steps[Event]]
    """Reads one answer, given the tools by name."""
    calls: Calls
    """Makes the form of calls that a request demands."""
    unmarked: TextOrCalls | None = None
    """Makes the form of an answer that may have calls, if calls do not always begin with a marker."""
    in_template: Sequence[str]
    """A chat template that contains all of these is of a model with this format."""
    id_length: int = 24
    """Characters of a call's id; some templates accept only theirs."""
    reasons: bool = False
    """Whether it marks reasoning itself, instead of by <think>."""

    def text_or_calls(self, tools: Sequence[Tool], template: str, *, several: bool, unless: str = "") -> Form:
        """Return the form of any text, perhaps with calls; the parameters are those of `Calls` and `TextOrCalls`."""
        if self.unmarked is not None:
            return self.unmarked(tools, several=several, unless=unless)
        return text_or_marked(self.calls(tools, template, several=several), unless)


def tool_named(tools: Mapping[str, Tool], name: str) -> Tool:
    """Return the tool of this name; one without a schema if the model has made the name up."""
    return tools.get(name) or Tool(name)
