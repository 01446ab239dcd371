"""The bodies of requests of the Responses API. A field that is not named here is an error: none is ignored by mistake.

Nothing is stored between requests: fields that refer to something stored are refused by name. The fields of
`SamplingFields` that OpenAI's API does not have are accepted with their own names, as are those that vLLM's has.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from octavo_engine.server.openai.bodies.body import Body, StrictBody
from octavo_engine.server.openai.bodies.field_types import (
    MAX_TEXT,
    MAX_TOKENS,
    WHOLE,
    Content,
    Effort,
    Label,
    Name,
    TemplateValues,
    Text,
    TokenCount,
    ToolDescription,
    ToolName,
    TopLogprobs,
)
from octavo_engine.server.openai.bodies.refused import OnlyFalse
from octavo_engine.server.openai.protocol import IgnoredFields, SamplingFields
from octavo_engine.server.openai.structured_outputs.fields import (
    NamedSchema,
    OptionalArgumentsSchema,
    StructuredOutputs,
)
from octavo_engine.server.openai.tools.custom_tools import InputGrammar, TextInput
from octavo_engine.server.openai.tools.fields import MAX_TOOLS, run_by_clients
from octavo_engine.structured.grammar import MAX_CHARACTERS

_MAX_ITEMS = 16_384
_Id = Annotated[str, Field(max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]


def _nothing_stored(value: Any) -> Any:
    if value is not None:
        message = "this server stores nothing between requests; send all earlier items in input"
        raise PydanticCustomError("unsupported_parameter", message)
    return value


NothingStored = Annotated[Any, AfterValidator(_nothing_stored)]


class MessageItem(Body):
    """A message of any role; the text of an earlier answer is one, too."""

    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(Body):
    """A call of a tool in an earlier answer."""

    type: Literal["function_call"]
    call_id: _Id
    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[str, Field(max_length=MAX_CHARACTERS)]


class FunctionCallOutputItem(Body):
    """The result of a tool call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: _Id
    output: Content


class CustomToolCallItem(Body):
    """A call of a custom tool in an earlier answer."""

    type: Literal["custom_tool_call"]
    call_id: _Id
    name: Annotated[str, Field(max_length=256)]
    input: Annotated[str, Field(max_length=MAX_CHARACTERS)]


class ReasoningText(Body):
    """A part of an earlier answer's reasoning."""

    type: Literal["reasoning_text"]
    text: Text


class ReasoningItem(Body):
    """The reasoning of an earlier answer. Summaries and encrypted content are left out of the prompt."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], Field(max_length=1024)] | None = None


_ITEMS = (
    "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning",
)  # fmt: skip


def _items(value: Any) -> Any:
    """Return the items of an input, which is a list of items, or a text: one message."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise ValueError("must be a text or a list of items")
    return value


def _known_item(item: Any) -> Any:
    """Return an item with its type, which clients may leave out of a message."""
    if not isinstance(item, dict):
        return item
    if "role" in item and item.get("type") is None:
        item["type"] = "message"  # in the client's body itself, in which errors are located
    kind = item.get("type")
    if isinstance(kind, str) and kind not in _ITEMS:
        message = "items of type {kind} are not supported by this version"
        raise PydanticCustomError("unsupported_parameter", message, {"place": ("type",), "kind": kind[:100]})
    return item


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionCallOutputItem | CustomToolCallItem | ReasoningItem,
    Field(discriminator="type"),
    BeforeValidator(_known_item),
]
Items = Annotated[list[Item], Field(min_length=1, max_length=_MAX_ITEMS), BeforeValidator(_items)]


class FunctionTool(Body):
    """A function that the model may call."""

    type: Literal["function"]
    name: ToolName
    description: ToolDescription | None = None
    parameters: OptionalArgumentsSchema = None
    strict: bool | None = None
    """True if the arguments of calls must follow the schema also where the model decides whether to call a tool."""


class GrammarInput(InputGrammar):
    """The grammar that the input of a custom tool follows."""

    type: Literal["grammar"]


class CustomTool(Body):
    """A tool that takes a text."""

    type: Literal["custom"]
    name: ToolName
    description: ToolDescription | None = None
    format: Annotated[TextInput | GrammarInput, Field(discriminator="type")] | None = None


Tools = Annotated[
    list[Annotated[FunctionTool | CustomTool, Field(discriminator="type"), BeforeValidator(run_by_clients)]],
    Field(max_length=MAX_TOOLS),
]


class NamedTool(StrictBody):
    """The tool that must be called."""

    type: Literal["function", "custom"]
    name: ToolName


class AllowedTools(StrictBody):
    """The tools that may be called, and whether one must be."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS)]


def _branch(value: Any) -> str:
    return "object" if isinstance(value, dict) else "word"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[Annotated[NamedTool | AllowedTools, Field(discriminator="type")], Tag("object")],
    Discriminator(_branch),
]


class TextFormat(StrictBody):
    """The form of the answer's text."""

    type: Literal["text", "json_object"]


class SchemaFormat(NamedSchema):
    """The schema that the answer follows."""

    type: Literal["json_schema"]


class TextOptions(StrictBody):
    """Options of the answer's text. `verbosity` has no effect."""

    format: Annotated[TextFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


Summary = Literal["auto", "concise", "detailed"]


class ReasoningOptions(StrictBody):
    """The effort that the model should spend on reasoning.

    A summary of any kind may be asked for, but there is none: the whole reasoning is in the answer.
    """

    effort: Effort | None = None
    summary: Summary | None = None
    generate_summary: Summary | None = None
    """The older name of `summary`."""
    context: Literal["auto", "all_turns"] | None = None
    """Has no effect: the chat template decides which reasoning of earlier turns the model reads."""
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(StrictBody):
    """Options of a stream. Events are never padded, whatever `include_obfuscation` says."""

    include_obfuscation: bool | None = None


Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class ResponsesBody(StrictBody, IgnoredFields, SamplingFields):
    """The body of POST /v1/responses."""

    model_config = ConfigDict(extra="forbid")

    model: Name | None = None
    input: Items
    instructions: Annotated[str, Field(max_length=MAX_TEXT)] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: TokenCount | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Include], Field(max_length=16)] | None = None
    top_logprobs: TopLogprobs | None = None
    truncation: Literal["disabled"] | None = None
    # Fields that vLLM adds to this API; they mean what they mean in a chat.
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: TemplateValues | None = None
    skip_special_tokens: bool | None = None
    request_id: Label | None = None
    # These refer to something that would have to be stored on this server, or to run here.
    previous_response_id: NothingStored = None
    conversation: NothingStored = None
    prompt: NothingStored = None
    background: OnlyFalse = None
    max_tool_calls: Annotated[int, Field(ge=0, le=MAX_TOKENS), WHOLE] | None = None
    """Has no effect: only clients call tools."""
