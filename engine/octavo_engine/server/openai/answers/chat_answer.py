"""Turns the text of a chat's answer into OpenAI's content, reasoning and tool calls, as a message or as deltas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.answer_parts import AnswerParts, Kind, Part, PartBegun, PartEvent, PartGrown
from octavo_engine.server.openai.answers.objects import (
    AssistantMessage,
    CustomCall,
    Delta,
    FunctionCall,
    ToolCall,
    ToolCallDelta,
)
from octavo_engine.server.openai.answers.reasoning_tokens import ReasoningTokens
from octavo_engine.text.tokenizer import Tokenizer


class ChatAnswer:
    """The answer of one choice: `push` takes its text and returns deltas, `message` the complete message."""

    def __init__(self, form: AnswerForm, tokenizer: Tokenizer) -> None:
        self._form = form
        self._answer = AnswerParts(form)
        self.reasoning = ReasoningTokens(tokenizer)

    def push(self, text: str, token_ids: Sequence[int], *, last: bool) -> list[Delta]:
        """Return the deltas of the next piece of text, of these tokens; `last` means that no more text comes."""
        events = self._answer.push(text, last=last)
        if not self._form.plain:
            self.reasoning.add(text, token_ids, events)
        return [delta for event in events if (delta := self._delta(event)) is not None]

    def message(self) -> AssistantMessage:
        """Return the complete message."""
        content, reasoning, calls = self._text_of("text"), self._text_of("reasoning"), self._answer.calls
        message = AssistantMessage(content=None if calls and not content else content)
        if reasoning and not self._form.hides_reasoning:
            message.reasoning_content = message.reasoning = reasoning
        if calls:
            message.tool_calls = [
                ToolCall(call.id, _kind_of(call), **_called(call, call.name, call.text)) for call in calls
            ]
        return message

    def finish_reason(self, reason: str | None) -> str | None:
        """Return the reason for the client: `tool_calls` instead of `stop` if the model itself chose to call a tool."""
        return "tool_calls" if reason == "stop" and self._answer.calls and not self._form.named else reason

    def _text_of(self, kind: Kind) -> str:
        return "".join(part.text for part in self._answer.parts if part.kind == kind)

    def _delta(self, event: PartEvent) -> Delta | None:
        match event:
            case PartGrown(Part(kind="text"), text):
                return Delta(content=text)
            case PartGrown(Part(kind="reasoning"), text) if not self._form.hides_reasoning:
                return Delta(reasoning_content=text, reasoning=text)
            case PartBegun(Part(kind="call", number=number, name=name, id=call_id) as part):
                begun = ToolCallDelta(number, **_called(part, name, ""), id=call_id, type=_kind_of(part))
                return Delta(tool_calls=[begun])
            case PartGrown(Part(kind="call", number=number) as part, text):
                return Delta(tool_calls=[ToolCallDelta(number, **_called(part, UNSET, text))])
        return None


def _kind_of(call: Part) -> str:
    return "function" if call.input is None else "custom"


def _called(call: Part, name: str | UnsetType, text: str) -> dict[str, Any]:
    """Return the called tool with the arguments or the input `text`, under the name of its kind."""
    return {_kind_of(call): FunctionCall(name, text) if call.input is None else CustomCall(name, text)}
