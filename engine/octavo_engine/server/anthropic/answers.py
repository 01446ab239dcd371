"""The objects of answers and of stream events in Anthropic's API, with its exact keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class TextContent(msgspec.Struct, tag="text"):
    """A content block of text."""

    text: str = ""


class ThinkingContent(msgspec.Struct, tag="thinking"):
    """A content block of reasoning. Its signature is empty, as this server does not check signatures."""

    thinking: str = ""
    signature: str = ""


class ToolUse(msgspec.Struct, tag="tool_use"):
    """A content block with a call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock = TextContent | ThinkingContent | ToolUse


class MessageUsage(msgspec.Struct):
    """The numbers of tokens: of the prompt without those from the prefix cache, of these, and of the answer."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct, tag="message", kw_only=True):
    """A complete answer, or an answer without content at the beginning of its stream."""

    id: str
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag="message_start"):
    """The first event of a stream."""

    message: Message


class ContentBlockStart(msgspec.Struct, tag="content_block_start"):
    """The event that a block begins."""

    index: int
    content_block: ContentBlock


class TextDelta(msgspec.Struct, tag="text_delta"):
    """An addition to a block of text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    """An addition to a block of reasoning."""

    thinking: str


class InputJSONDelta(msgspec.Struct, tag="input_json_delta"):
    """An addition to the JSON of a call's arguments."""

    partial_json: str


class ContentBlockDelta(msgspec.Struct, tag="content_block_delta"):
    """The event that adds to a block."""

    index: int
    delta: TextDelta | ThinkingDelta | InputJSONDelta


class ContentBlockStop(msgspec.Struct, tag="content_block_stop"):
    """The event that a block is complete, or that the answer ended within it."""

    index: int


class End(msgspec.Struct):
    """The reason why an answer ended."""

    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    """The event with an answer's end and its usage."""

    delta: End
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag="message_stop"):
    """The last event of a stream."""


class ModelInfo(msgspec.Struct, tag="model", kw_only=True):
    """One entry of the list of models. `created_at` is a time as in RFC 3339."""

    id: str
    display_name: str
    created_at: str
    lifecycle: str = "active"
    max_input_tokens: int
    max_tokens: int


class ModelPage(msgspec.Struct, kw_only=True):
    """The list of models, which is always complete."""

    data: Sequence[ModelInfo]
    first_id: str
    last_id: str
    has_more: bool = False
