"""The objects of answers and of stream events in the Responses API, with its exact keys."""

from __future__ import annotations

import msgspec

from octavo_engine.server.errors import ErrorDetail
from octavo_engine.server.openai.answers.objects import ContentLogprob


class OutputText(msgspec.Struct, tag="output_text"):
    """The text of a message."""

    text: str
    logprobs: list[ContentLogprob]
    annotations: list[str] = []


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    """The text of reasoning."""

    text: str


Content = OutputText | ReasoningText


class MessageItem(msgspec.Struct, tag="message", kw_only=True):
    """An output item with the text of the answer."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag="reasoning", kw_only=True):
    """An output item with the model's reasoning."""

    id: str
    status: str
    summary: list[str] = []
    content: list[ReasoningText]
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, tag="function_call", kw_only=True):
    """An output item with a call of a tool."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class CustomToolCallItem(msgspec.Struct, tag="custom_tool_call", kw_only=True):
    """An output item with a call of a custom tool."""

    id: str
    status: str
    call_id: str
    name: str
    input: str


Item = MessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem


class InputDetails(msgspec.Struct):
    """How many of the prompt's tokens came from the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """How many of the answer's tokens are reasoning."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """The numbers of tokens of a request: of its prompt, of its answer, and of both."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """The reason why an answer is not complete."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, without the fields that it repeats from its request."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    error: None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: list[Item]
    usage: ResponseUsage | None = None


class Event(msgspec.Struct, kw_only=True):
    """The common fields of all events of a stream: its type, and its number in the stream, from 0."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event, kw_only=True):
    """An event that has the whole response."""

    response: msgspec.Raw


class ItemEvent(Event, kw_only=True):
    """The event that an item begins or is complete."""

    output_index: int
    item: Item


class EventInItem(Event, kw_only=True):
    """The common fields of events within an item."""

    item_id: str
    output_index: int


class ContentEvent(EventInItem, kw_only=True):
    """The event that the only part of an item begins or is complete."""

    content_index: int = 0
    part: Content


class TextDelta(EventInItem, kw_only=True):
    """The event with more of a message's text."""

    content_index: int = 0
    delta: str
    logprobs: list[ContentLogprob]


class TextDone(EventInItem, kw_only=True):
    """The event with all of a message's text."""

    content_index: int = 0
    text: str
    logprobs: list[ContentLogprob]


class ReasoningDelta(EventInItem, kw_only=True):
    """The event with more of the text of reasoning."""

    content_index: int = 0
    delta: str


class ReasoningDone(EventInItem, kw_only=True):
    """The event with all of the text of reasoning."""

    content_index: int = 0
    text: str


class CallDelta(EventInItem, kw_only=True):
    """The event with more of a call's arguments, or of a custom tool's input."""

    delta: str


class ArgumentsDone(EventInItem, kw_only=True):
    """The event with all of a call's arguments."""

    name: str
    arguments: str


class InputDone(EventInItem, kw_only=True):
    """The event with all of a custom tool's input."""

    input: str


class ErrorEvent(Event, kw_only=True):
    """The event that ends a stream that failed. SDKs raise what is in `error`; the other fields are those of OpenAI."""

    code: str | None
    message: str
    param: str | None
    error: ErrorDetail
