"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.output_parsing.answer_parts import AnswerParts, Part, PartBegun, PartEvent, PartGrown
from octavo_engine.server.anthropic.answers import (
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    End,
    InputJSONDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    TextContent,
    TextDelta,
    ThinkingContent,
    ThinkingDelta,
    ToolUse,
)
from octavo_engine.server.connections.sse import named_event
from octavo_engine.server.errors import APIError, anthropic_body
from octavo_engine.server.generation.answer import answer, json_answer
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage, UsageSoFar
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest
from octavo_engine.server.serving import Serving

_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Reads the arguments of a call, whose values are passed on as they were written."""


class MessageWriter:
    """Writes one message, as the events of a stream or as one JSON body."""

    keeps_logprobs = False

    def __init__(self, request_id: str, name: str, prepared: PreparedRequest, model: LoadedModel) -> None:  # noqa: ARG002  (no log probabilities here)
        self._request_id = request_id
        self._answer = AnswerParts(prepared.form)
        self._end = End("end_turn", None)
        self._message = Message(
            id=f"msg_{uuid.uuid4().hex}",
            model=prepared.model or name,
            content=[],
            usage=MessageUsage(prepared.prompt_tokens, 0, 0),
        )

    def opening(self, index: int, usage: UsageSoFar) -> list[bytes]:  # noqa: ARG002  (there is one answer)
        """Return the first event, which has the message without content."""
        return [_event(MessageStart(self._message))]

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:  # noqa: ARG002  (the last event says it)
        """Return the events of an output: changes of the blocks."""
        last = output.finish_reason is not None
        events = [_event(_block_event(event)) for event in self._answer.push(output.text, last=last)]
        if last:
            self._end = self._end_of(output)
        return events

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the last events: the message's end and its usage."""
        return [_event(MessageDelta(self._end, _usage(usage))), _event(MessageStop())]

    def failure(self, error: APIError) -> bytes:
        """Return the error event."""
        return named_event("error", anthropic_body(error, self._request_id))

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete message."""
        [output] = answers
        self._answer.push(output.text, last=True)
        end = self._end_of(output)
        message = msgspec.structs.replace(
            self._message,
            content=[_complete(part) for part in self._answer.parts],
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            usage=_usage(usage),
        )
        return encode(message)

    def _end_of(self, output: SequenceOutput) -> End:
        if output.finish_reason == "length":
            return End("max_tokens", None)
        if self._answer.calls:
            return End("tool_use", None)
        if isinstance(output.stop_reason, str):
            return End("stop_sequence", output.stop_reason)
        return End("end_turn", None)


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(usage.prompt_tokens - cached, cached, usage.completion_tokens)


def _block_event(event: PartEvent) -> ContentBlockStart | ContentBlockDelta | ContentBlockStop:
    match event:
        case PartBegun(part):
            return ContentBlockStart(part.index, _empty(part))
        case PartGrown(Part(kind="text") as part, text):
            return ContentBlockDelta(part.index, TextDelta(text))
        case PartGrown(Part(kind="reasoning") as part, text):
            return ContentBlockDelta(part.index, ThinkingDelta(text))
        case PartGrown(part, text):
            return ContentBlockDelta(part.index, InputJSONDelta(text))
    return ContentBlockStop(event.part.index)


def _empty(part: Part) -> ContentBlock:
    match part.kind:
        case "text":
            return TextContent()
        case "reasoning":
            return ThinkingContent()
    return ToolUse(_tool_id(part), part.name, {})


def _complete(part: Part) -> ContentBlock:
    match part.kind:
        case "text":
            return TextContent(part.text)
        case "reasoning":
            return ThinkingContent(part.text)
    try:
        arguments: dict[str, Any] = _arguments(part.text or "{}")
    except (ValueError, RecursionError):  # the answer ended within the arguments, or they are no object in valid JSON
        arguments = {"arguments": part.text}
    return ToolUse(_tool_id(part), part.name, arguments)


def _tool_id(part: Part) -> str:
    """Return the id of a call with Anthropic's prefix, unless the format of the model's calls has ids of its own."""
    return f"toolu_{part.id.removeprefix('call_')}" if part.id.startswith("call_") else part.id


def _event(data: msgspec.Struct) -> bytes:
    return named_event(str(data.__struct_config__.tag), encode(data))


def _check_version(request: Request) -> None:
    """Raise APIError 400 if anthropic-version is not a date. It may be missing, as there is only one version here."""
    version = request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        raise APIError(400, "anthropic-version: must be a date such as 2023-06-01", param="anthropic-version")


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints."""
    router = APIRouter()

    @router.post("/v1/messages", response_model=None)
    async def messages(request: Request) -> Response:
        _check_version(request)
        return await answer(serving, request, "messages", partial(MessageWriter, request.state.request_id))

    @router.post("/v1/messages/count_tokens", response_model=None)
    async def count_tokens(request: Request) -> Response:
        _check_version(request)
        return await json_answer(serving, request, "count_tokens")

    return router
