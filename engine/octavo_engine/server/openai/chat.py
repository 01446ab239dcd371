"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.answering import answer
from octavo_engine.server.openai.answers import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
    Usage,
    UsageSoFar,
)
from octavo_engine.server.openai.chat_answer import ChatAnswer
from octavo_engine.server.openai.content_logprobs import content_logprobs
from octavo_engine.server.openai.frame import Frame
from octavo_engine.server.openai.sse import error_event
from octavo_engine.server.prepared import PreparedRequest
from octavo_engine.server.sequence import SequenceOutput
from octavo_engine.server.serving import Serving
from octavo_engine.text.logprobs import prompt_logprobs
from octavo_engine.text.tokenizer import Tokenizer


class ChatWriter:
    """Answers and chunks of one chat completion."""

    def __init__(self, name: str, asked: PreparedRequest, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._logprobs = asked.sampling.logprobs is not None
        self._prompt_logprobs = asked.prompt_logprobs
        self._answers = [ChatAnswer(asked.form) for _ in range(asked.sequences)]
        self._frame = Frame(name, asked, "chatcmpl", "chat.completion.chunk" if asked.stream else "chat.completion")

    def opening(self, index: int, usage: UsageSoFar) -> list[bytes]:
        """The chunk that names the role."""
        return [self._frame.chunk(ChatChunkChoice(index, Delta(role="assistant", content="")), usage)]

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:
        """The deltas, and how it ended in a chunk of its own. Log probabilities come with the first of an output."""
        answer = self._answers[output.index]
        deltas = answer.push(output.text, last=output.finish_reason is not None)
        if output.logprobs and self._logprobs and not deltas:
            deltas = [Delta(content="")]
        found, logprobs = [], self._of(output)
        for delta in deltas:
            found.append(self._frame.chunk(ChatChunkChoice(output.index, delta, logprobs), usage))
            logprobs = None
        if output.finish_reason is not None:
            end = ChatChunkChoice(
                output.index,
                Delta(),
                finish_reason=answer.finish_reason(output.finish_reason),
                stop_reason=output.stop_reason,
            )
            found.append(self._frame.chunk(end, usage))
        return found

    def closing(self, usage: Usage) -> list[bytes]:
        """The usage, if it is asked for, and [DONE]."""
        return self._frame.closing(usage)

    def failure(self, error: APIError) -> bytes:
        """The error; no [DONE] follows."""
        return error_event(error)

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """The complete answer."""
        choices = [self._choice(output) for output in answers]
        if self._prompt_logprobs is None:
            return self._frame.full(choices, usage)
        found = prompt_logprobs(answers[0].prompt_logprobs or (), self._tokenizer, self._prompt_logprobs)
        return self._frame.full(choices, usage, found)

    def _choice(self, output: SequenceOutput) -> ChatChoice:
        answer = self._answers[output.index]
        answer.push(output.text, last=True)
        reason = answer.finish_reason(output.finish_reason)
        return ChatChoice(output.index, answer.message(), reason, self._of(output), output.stop_reason)

    def _of(self, output: SequenceOutput) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs(content_logprobs(output.logprobs, self._tokenizer))


def routes(serving: Serving) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Response:
        return await answer(serving, request, "chat", ChatWriter)

    return router
