"""The bodies of requests of Anthropic's Messages API.

`null` means absent. As in Anthropic's API, a field that is not named here is an error, so none is ignored by mistake.
Fields of `SamplingFields` that Anthropic's API does not have are accepted with their own names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from octavo_engine.server.errors import THREADS
from octavo_engine.server.openai.bodies.body import Body, StrictBody
from octavo_engine.server.openai.bodies.field_types import (
    MAX_TOKENS,
    WHOLE,
    Label,
    Name,
    StopString,
    TemplateValues,
    Text,
    TokenCount,
    ToolName,
)
from octavo_engine.server.openai.protocol import IgnoredObject, SamplingFields
from octavo_engine.server.openai.structured_outputs.fields import ArgumentsSchema, SchemaObject
from octavo_engine.server.openai.tools.fields import MAX_TOOLS
from octavo_engine.structured.grammar import MAX_CHARACTERS

_MAX_BLOCKS = 1024
_Id = Annotated[str, Field(max_length=256)]
_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class TextBlock(Body):
    """A text, as a part of a message, of a system prompt or of a tool's result."""

    type: Literal["text"]
    text: Text


class ThinkingBlock(Body):
    """The reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: Text


class RedactedThinkingBlock(Body):
    """Reasoning that only Anthropic's servers can read; it is left out of the prompt."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(Body):
    """A call of a tool in an earlier answer."""

    type: Literal["tool_use"]
    id: _Id
    name: ToolName
    input: SchemaObject
    """The arguments: an object."""


def _as_blocks(value: Any) -> Any:
    """Return the blocks of a content, which is a list of blocks, or a text: one block, or none if it is empty.

    Blocks of unknown types, such as images, are refused.
    """
    if isinstance(value, str):
        return [{"type": "text", "text": value}] if value else []
    if not isinstance(value, list):
        raise ValueError("must be a text or a list of blocks")
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in _BLOCKS:
            shown = {"place": (index, "type"), "kind": kind[:100]}
            raise PydanticCustomError("unsupported_parameter", "this model reads text only, not {kind}", shown)
    return value


Texts = Annotated[list[TextBlock], Field(max_length=_MAX_BLOCKS), BeforeValidator(_as_blocks)]


class ToolResultBlock(Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: _Id
    content: Texts | None = None
    is_error: bool | None = None


Block = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]
Blocks = Annotated[list[Block], Field(max_length=_MAX_BLOCKS), BeforeValidator(_as_blocks)]


class Turn(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="after")
    def _blocks_belong_to_the_role(self) -> Turn:
        kinds = {block.type for block in self.content}
        allowed = {"user": {"text", "tool_result"}, "system": {"text"}}.get(self.role, set(_BLOCKS) - {"tool_result"})
        if wrong := sorted(kinds - allowed):
            raise ValueError(f"a message of role {self.role} cannot have content of type {wrong[0]}")
        return self


def _only_custom(value: Any) -> Any:
    if isinstance(value, str) and value != "custom":
        message = "tools of type {kind} are not supported by this version; there are custom ones only"
        raise PydanticCustomError("unsupported_parameter", message, {"kind": value[:100]})
    return value


class ToolSpecification(Body):
    """A tool that the model may call. Tools that Anthropic's own servers run are refused."""

    type: Annotated[Literal["custom"] | None, BeforeValidator(_only_custom)] = None
    name: ToolName
    description: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None
    input_schema: ArgumentsSchema
    strict: bool | None = None
    """True if the arguments of calls must follow the schema also where the model decides whether to call a tool."""


class ToolChoice(Body):
    """The choice whether the model may, must or must not call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> ToolChoice:
        if self.type == "tool" and self.name is None:
            raise PydanticCustomError("missing_member", "if type is tool", {"place": ("name",)})
        if self.type != "tool" and self.name is not None:
            raise PydanticCustomError("value_error", "must be given only if type is tool", {"place": ("name",)})
        return self


class Thinking(Body):
    """The choice whether the model reasons before it answers.

    `budget_tokens` is checked, but does not limit anything.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=1024, le=MAX_TOKENS), WHOLE] | None = None


class OutputFormat(Body):
    """The schema that an answer follows."""

    type: Literal["json_schema"]
    schema_: Annotated[SchemaObject, Field(alias="schema")]


class OutputConfig(StrictBody):
    """The form of an answer, and how hard the model should think about it."""

    format: OutputFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class ThinkingEdit(StrictBody):
    """An edit that would remove earlier reasoning from the prompt. Only one that removes none is accepted."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(StrictBody):
    """What the server should remove from the prompt. Claude Code asks to remove nothing."""

    edits: Annotated[list[ThinkingEdit], Field(max_length=16)] | None = None


def _no_thread(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError(THREADS, "this server keeps no conversation; send all messages, without thread")
    return value


class PromptBody(StrictBody):
    """The fields of a prompt, and the body of POST /v1/messages/count_tokens."""

    model: Name | None = None
    messages: Annotated[list[Turn], Field(min_length=1, max_length=16_384)]
    system: Texts | None = None
    tools: Annotated[list[ToolSpecification], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    speed: Literal["standard"] | None = None
    cache_control: IgnoredObject | None = None
    """Prefixes are always cached (unless the server was started without prefix caching)."""
    chat_template_kwargs: TemplateValues | None = None
    """Variables of the chat template, as vLLM has them in this API; they take precedence over thinking and effort."""


class RequestMetadata(Body):
    """Who asks. Nothing in an answer depends on it."""

    user_id: Label | None = None


class MessagesBody(PromptBody, SamplingFields):
    """The body of POST /v1/messages."""

    model_config = ConfigDict(extra="forbid")

    max_tokens: TokenCount
    stop_sequences: Annotated[list[StopString], Field(max_length=64)] | None = None
    """Texts that end the answer. There may be more of them than in a chat completion's `stop`."""
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stream: bool | None = None
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    thread: Annotated[Any, AfterValidator(_no_thread)] = None
    """A conversation that the server would keep. The SDK's tool runner asks for one, and goes on without it."""
