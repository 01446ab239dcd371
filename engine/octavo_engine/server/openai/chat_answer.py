"""The parts of a chat's answer as OpenAI's API has them: content, reasoning and calls of tools, whole or as deltas."""

from __future__ import annotations

import secrets
import string

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from octavo_engine.output_parsing.formats import FORMATS
from octavo_engine.server.openai.answers import AssistantMessage, Delta, FunctionCall, ToolCall, ToolCallDelta

_ALPHABET = string.ascii_letters + string.digits
_ID_LENGTH = 24


class ChatAnswer:
    """One choice: its text is given to `push` as it comes, and becomes deltas, or a message in the end."""

    def __init__(self, form: AnswerForm) -> None:
        self._form = form
        self._parser = None if form.plain else form.parser()
        self._calls: list[ToolCall] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def push(self, text: str, *, last: bool) -> list[Delta]:
        """What the next piece of text adds."""
        if self._parser is None:
            self._content.append(text)
            return [Delta(content=text)] if text else []
        events = self._parser.push(text)
        if last:
            events += self._parser.finish()
        return [self._delta(event) for event in events]

    def message(self) -> AssistantMessage:
        """All of it."""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        message = AssistantMessage(content=None if self._calls and not content else content)
        if reasoning:
            message.reasoning_content = message.reasoning = reasoning
        if self._calls:
            message.tool_calls = self._calls
        return message

    def finish_reason(self, reason: str | None) -> str | None:
        """An answer that called a tool of its own choice ends with `tool_calls` instead of `stop`."""
        return "tool_calls" if reason == "stop" and self._calls and not self._form.named else reason

    def _delta(self, event: Event) -> Delta:
        match event:
            case Content(text):
                self._content.append(text)
                return Delta(content=text)
            case Reasoning(text):
                self._reasoning.append(text)
                return Delta(reasoning_content=text, reasoning=text)
            case CallStart(name):
                call = ToolCall(self._new_id(), FunctionCall(name))
                self._calls.append(call)
                return self._call_delta(ToolCallDelta(len(self._calls) - 1, FunctionCall(name), call.id, call.type))
            case CallArguments(text):
                self._calls[-1].function.arguments += text
                return self._call_delta(ToolCallDelta(len(self._calls) - 1, FunctionCall(arguments=text)))

    @staticmethod
    def _call_delta(call: ToolCallDelta) -> Delta:
        return Delta(tool_calls=[call])

    def _new_id(self) -> str:
        format_ = FORMATS.get(self._form.format or "")
        if format_ is not None and format_.id_length != _ID_LENGTH:
            return _random(format_.id_length)
        return f"call_{_random(_ID_LENGTH)}"


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))
