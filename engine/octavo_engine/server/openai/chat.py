"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.connections.sse import error_event
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.answer import answer
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage, UsageSoFar
from octavo_engine.server.openai.answers.chat_answer import ChatAnswer
from octavo_engine.server.openai.answers.content_logprobs import content_logprobs
from octavo_engine.server.openai.answers.frame import Frame
from octavo_engine.server.openai.answers.objects import (
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    Delta,
)
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest
from octavo_engine.server.serving import Serving
from octavo_engine.text.logprobs import id_name, prompt_logprobs


class ChatWriter:
    """Writes the answers of one chat completion, as chunks or as one JSON body."""

    keeps_logprobs = False

    def __init__(self, name: str, prepared: PreparedRequest, model: LoadedModel) -> None:
        self._tokenizer = model.tokenizer
        self._has_logprobs = prepared.sampling.logprobs is not None
        self._prepared = prepared
        self._answers = [ChatAnswer(prepared.form, model.tokenizer) for _ in range(prepared.sequences)]
        kind = "chat.completion.chunk" if prepared.stream else "chat.completion"
        self._frame = Frame(name, prepared, "chatcmpl", kind, model.fingerprint)

    def opening(self, index: int, usage: UsageSoFar) -> list[bytes]:
        """Return the chunk that names the role."""
        begun = ChatChunkChoice(index, Delta(role="assistant", content=""))
        return [self._frame.chunk(begun, usage, self._prompt_ids())]

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:
        """Return a chunk for each delta of an output, and one of its own with the reason why the sequence ended.

        The first chunk has the output's token ids and log probabilities.
        """
        answer = self._answers[output.index]
        deltas = answer.push(output.text, output.token_ids, last=output.finish_reason is not None)
        logprobs, token_ids = self._logprobs_of(output), self._ids(output)
        if not deltas and ((logprobs and output.logprobs) or token_ids):
            deltas = [Delta(content="")]
        chunks = []
        for delta in deltas:
            choice = ChatChunkChoice(output.index, delta, logprobs, token_ids=token_ids)
            chunks.append(self._frame.chunk(choice, self._usage_of_chunk(usage)))
            logprobs, token_ids = None, UNSET
        if output.finish_reason is not None:
            end = ChatChunkChoice(
                output.index,
                Delta(),
                finish_reason=answer.finish_reason(output.finish_reason),
                stop_reason=output.stop_reason,
            )
            chunks.append(self._frame.chunk(end, self._usage_of_chunk(usage)))
        return chunks

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the chunk of the usage, if the client asked for it, and [DONE]."""
        return self._frame.closing(self._with_reasoning_tokens(usage))

    def failure(self, error: APIError) -> bytes:
        """Return the error event; no [DONE] follows."""
        return error_event(error)

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        choices = [self._choice(output) for output in answers]
        of_prompt: dict[str, Any] = {"prompt_token_ids": self._prompt_ids()}
        if (num_top := self._prepared.prompt_logprobs) is not None:
            logprobs = answers[0].prompt_logprobs or ()
            of_prompt["prompt_logprobs"] = prompt_logprobs(logprobs, self._tokenizer, num_top)
        return self._frame.full(choices, self._with_reasoning_tokens(usage), **of_prompt)

    def _with_reasoning_tokens(self, usage: Usage) -> Usage:
        """Return the usage, to which the number of reasoning tokens is added."""
        usage.completion_tokens_details.reasoning_tokens = sum(each.reasoning.count for each in self._answers)
        return usage

    def _usage_of_chunk(self, usage: UsageSoFar) -> UsageSoFar:
        return usage if self._prepared.form.plain else lambda: self._with_reasoning_tokens(usage())

    def _choice(self, output: SequenceOutput) -> ChatChoice:
        answer = self._answers[output.index]
        answer.push(output.text, output.token_ids, last=True)
        reason = answer.finish_reason(output.finish_reason)
        return ChatChoice(
            output.index, answer.message(), reason, self._logprobs_of(output), output.stop_reason, self._ids(output)
        )

    def _prompt_ids(self) -> Sequence[int] | UnsetType:
        return self._prepared.prompts[0] if self._prepared.token_ids else UNSET

    def _ids(self, output: SequenceOutput) -> Sequence[int] | UnsetType:
        return output.token_ids if self._prepared.token_ids else UNSET

    def _logprobs_of(self, output: SequenceOutput) -> ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        name = id_name if self._prepared.names_by_id else None
        return ChatLogprobs(content_logprobs(output.logprobs, self._tokenizer, name))


def routes(serving: Serving) -> APIRouter:
    """Return the route of the endpoint."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request) -> Response:
        return await answer(serving, request, "chat", ChatWriter)

    return router
