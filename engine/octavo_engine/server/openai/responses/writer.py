"""Writes an answer of the Responses API, as the events of a stream or as one JSON body."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.output_parsing.answer_parts import AnswerParts, Part, PartBegun, PartEvent, PartGrown
from octavo_engine.server.connections.sse import named_event
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage, UsageSoFar
from octavo_engine.server.openai.answers.content_logprobs import content_logprobs
from octavo_engine.server.openai.answers.objects import ContentLogprob, encode
from octavo_engine.server.openai.answers.reasoning_tokens import ReasoningTokens
from octavo_engine.server.openai.responses.objects import (
    ArgumentsDone,
    CallDelta,
    Content,
    ContentEvent,
    CustomToolCallItem,
    ErrorEvent,
    Event,
    FunctionCallItem,
    IncompleteDetails,
    InputDetails,
    InputDone,
    Item,
    ItemEvent,
    MessageItem,
    OutputDetails,
    OutputText,
    ReasoningDelta,
    ReasoningDone,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
    ResponseObject,
    ResponseUsage,
    TextDelta,
    TextDone,
)
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
_INPUT, _ARGUMENTS = "response.custom_tool_call_input", "response.function_call_arguments"


class ResponseWriter:
    """Writes one response. Each of its items is one part of the answer: reasoning, a message, or a call."""

    keeps_logprobs = True

    def __init__(self, name: str, prepared: PreparedRequest, model: LoadedModel) -> None:
        self._tokenizer = model.tokenizer
        self._answer = AnswerParts(prepared.form)
        self._reasoning = ReasoningTokens(model.tokenizer)
        self._repeated = prepared.repeated
        self._name = uuid.uuid4().hex
        self._logprobs: dict[int, list[TokenLogprobs]] = {}
        """The log probabilities of each message, by its index among the items."""
        self._status = "completed"
        """The status of the items that end now."""
        self._events = 0
        self._response = ResponseObject(
            id=f"resp_{self._name}", created_at=int(time.time()), model=prepared.model or name, output=[]
        )

    def opening(self, index: int, usage: UsageSoFar) -> Iterator[bytes]:  # noqa: ARG002  (there is one answer)
        """Yield the first events, which have the response without its output, each when the last one is sent."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(ResponseEvent(type=kind, response=self._body()))

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:  # noqa: ARG002  (the last event says it)
        """Return the events of an output: changes of the items."""
        return [self._event(event) for event in self._take(output)]

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the last event, which has the complete response."""
        self._complete(usage)
        return [self._event(ResponseEvent(type=f"response.{self._status}", response=self._body()))]

    def failure(self, error: APIError) -> bytes:
        """Return the error event."""
        detail = error.detail
        return self._event(
            ErrorEvent(type="error", code=detail.code, message=detail.message, param=detail.param, error=detail)
        )

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete response."""
        [output] = answers
        self._take(output)
        self._complete(usage)
        return bytes(self._body())

    def _take(self, output: SequenceOutput) -> list[Event]:
        """Return the events of an output. Its log probabilities belong to the first message to which it adds text."""
        if output.finish_reason is not None:
            self._status = "incomplete" if output.finish_reason == "length" else "completed"
        item_events: list[Event] = []
        logprobs = output.logprobs
        events = self._answer.push(output.text, last=output.finish_reason is not None)
        self._reasoning.add(output.text, output.token_ids, events)
        for event in events:
            of_event = self._keep_logprobs(event, logprobs)
            logprobs = () if of_event else logprobs
            item_events += self._item_events(event, of_event)
        return item_events

    def _keep_logprobs(self, event: PartEvent, positions: Sequence[TokenLogprobs]) -> list[ContentLogprob]:
        """Keep the log probabilities of the text that the event adds, and return them; none if it adds no text."""
        if not isinstance(event, PartGrown) or event.part.kind != "text":
            return []
        self._logprobs.setdefault(event.part.index, []).extend(positions)
        return content_logprobs(positions, self._tokenizer)

    def _logprobs_of(self, part: Part) -> list[ContentLogprob]:
        return content_logprobs(self._logprobs.get(part.index, ()), self._tokenizer)

    def _item_events(self, event: PartEvent, logprobs: list[ContentLogprob]) -> list[Event]:
        part = event.part
        place: dict[str, Any] = {"item_id": self._id(part), "output_index": part.index}
        if isinstance(event, PartBegun):
            item = ItemEvent(type="response.output_item.added", output_index=part.index, item=self._begun(part))
            if part.kind == "call":
                return [item]
            return [item, ContentEvent(type="response.content_part.added", part=_content(part, "", []), **place)]
        if isinstance(event, PartGrown):
            return [_delta(part, event.text, logprobs, place)]
        done = self._item(part, self._status)
        ended = ItemEvent(type="response.output_item.done", output_index=part.index, item=done)
        return [*_done(part, self._logprobs_of(part), place), ended]

    def _complete(self, usage: Usage) -> None:
        parts = self._answer.parts
        items = [self._item(part, "completed" if part is not parts[-1] else self._status) for part in parts]
        incomplete = IncompleteDetails("max_output_tokens") if self._status == "incomplete" else None
        cached = usage.prompt_tokens_details.cached_tokens
        self._response = msgspec.structs.replace(
            self._response,
            completed_at=int(time.time()),
            status=self._status,
            incomplete_details=incomplete,
            output=items,
            usage=ResponseUsage(
                usage.prompt_tokens,
                InputDetails(cached),
                usage.completion_tokens,
                OutputDetails(self._reasoning.count),
                usage.total_tokens,
            ),
        )

    def _begun(self, part: Part) -> Item:
        """Return the item of a part that has no content yet."""
        match part.kind:
            case "text":
                return MessageItem(id=self._id(part), status="in_progress", content=[])
            case "reasoning":
                return ReasoningItem(id=self._id(part), status="in_progress", content=[])
        return self._call(part, "in_progress", "")

    def _item(self, part: Part, status: str) -> Item:
        """Return the item of a part with all of its content."""
        match part.kind:
            case "text":
                text = OutputText(part.text, self._logprobs_of(part))
                return MessageItem(id=self._id(part), status=status, content=[text])
            case "reasoning":
                return ReasoningItem(id=self._id(part), status=status, content=[ReasoningText(part.text)])
        return self._call(part, status, part.text)

    def _call(self, part: Part, status: str, text: str) -> Item:
        """Return the item of a call with these arguments, or this input."""
        named = {"id": self._id(part), "status": status, "call_id": part.id, "name": part.name}
        return (
            FunctionCallItem(**named, arguments=text) if part.input is None else CustomToolCallItem(**named, input=text)
        )

    def _id(self, part: Part) -> str:
        return f"{_PREFIXES[part.kind] if part.input is None else 'ctc'}_{self._name}{part.index:02d}"

    def _body(self) -> msgspec.Raw:
        """Return the response as one JSON object, made of its own fields and those that it repeats."""
        return msgspec.Raw(encode(self._response)[:-1] + b"," + self._repeated[1:])

    def _event(self, event: Event) -> bytes:
        event.sequence_number = self._events
        self._events += 1
        return named_event(event.type, encode(event))


def _content(part: Part, text: str, logprobs: list[ContentLogprob]) -> Content:
    return OutputText(text, logprobs) if part.kind == "text" else ReasoningText(text)


def _delta(part: Part, text: str, logprobs: list[ContentLogprob], place: dict[str, Any]) -> Event:
    match part.kind:
        case "text":
            return TextDelta(type="response.output_text.delta", delta=text, logprobs=logprobs, **place)
        case "reasoning":
            return ReasoningDelta(type="response.reasoning_text.delta", delta=text, **place)
    return CallDelta(type=f"{_ARGUMENTS if part.input is None else _INPUT}.delta", delta=text, **place)


def _done(part: Part, logprobs: list[ContentLogprob], place: dict[str, Any]) -> list[Event]:
    text = part.text
    content = _content(part, text, logprobs)
    match part.kind:
        case "text":
            text_done: Event = TextDone(type="response.output_text.done", text=text, logprobs=logprobs, **place)
        case "reasoning":
            text_done = ReasoningDone(type="response.reasoning_text.done", text=text, **place)
        case "call" if part.input is None:
            return [ArgumentsDone(type=f"{_ARGUMENTS}.done", name=part.name, arguments=text, **place)]
        case "call":
            return [InputDone(type=f"{_INPUT}.done", input=text, **place)]
    return [text_done, ContentEvent(type="response.content_part.done", part=content, **place)]
