"""Answers of the Responses API and the events of a stream of one, with the API's exact keys."""

from __future__ import annotations

import msgspec

from octavo_engine.server.errors import ErrorDetail
from octavo_engine.server.openai.answers import ContentLogprob


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
    """The message of the model for people."""

    id: str
    status: str
    role: str = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, tag="reasoning", kw_only=True):
    """The reasoning of the model."""

    id: str
    status: str
    summary: list[str] = []
    content: list[ReasoningText]
    encrypted_content: str | None = None


class FunctionCallItem(msgspec.Struct, tag="function_call", kw_only=True):
    """A call of a tool."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputDetails(msgspec.Struct):
    """The origin of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """The use of the answer's tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens that were read and written."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """The reason why an answer is not complete."""

    reason: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The fields of a response that are not repeated from its request."""

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
    """The common fields of all events of a stream: its kind, and its place among the events."""

    type: str
    sequence_number: int = 0


class ResponseEvent(Event, kw_only=True):
    """An event that has the whole response."""

    response: msgspec.Raw


class ItemEvent(Event, kw_only=True):
    """An item comes, or is complete."""

    output_index: int
    item: Item


class PlacedEvent(Event, kw_only=True):
    """An event within an item."""

    item_id: str
    output_index: int


class ContentEvent(PlacedEvent, kw_only=True):
    """The one part of an item comes, or is complete."""

    content_index: int = 0
    part: Content


class TextDelta(PlacedEvent, kw_only=True):
    """More of a message's text."""

    content_index: int = 0
    delta: str
    logprobs: list[ContentLogprob]


class TextDone(PlacedEvent, kw_only=True):
    """All of a message's text."""

    content_index: int = 0
    text: str
    logprobs: list[ContentLogprob]


class ReasoningDelta(PlacedEvent, kw_only=True):
    """More reasoning."""

    content_index: int = 0
    delta: str


class ReasoningDone(PlacedEvent, kw_only=True):
    """All of the reasoning."""

    content_index: int = 0
    text: str


class ArgumentsDelta(PlacedEvent, kw_only=True):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(PlacedEvent, kw_only=True):
    """All of a call's arguments."""

    name: str
    arguments: str


class ErrorEvent(Event, kw_only=True):
    """Ends a stream that failed. SDKs raise what is in `error`; the other fields are those of OpenAI's event."""

    code: str | None
    message: str
    param: str | None
    error: ErrorDetail
