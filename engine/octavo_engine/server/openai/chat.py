"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.core.request import TokenLogprobs
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation import GenerationRequest
from octavo_engine.server.limits import AdmittedRequest
from octavo_engine.server.openai.answering import Writer, answer
from octavo_engine.server.openai.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatLogprobs,
    ContentLogprob,
    Delta,
    TopLogprob,
    Usage,
)
from octavo_engine.server.openai.frame import Frame
from octavo_engine.server.openai.preparation import Times, answer_length, generation_request
from octavo_engine.server.openai.prompts import check_prompt, encode_text, render_chat, truncated_length
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.structured_outputs import grammar_of
from octavo_engine.server.sequence import Piece
from octavo_engine.server.serving import LoadedModel, Serving
from octavo_engine.text.logprobs import clamp
from octavo_engine.text.tokenizer import Tokenizer


class ChatWriter:
    """Answers and chunks of one chat completion."""

    def __init__(self, serving: Serving, body: ChatCompletionBody, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._logprobs = bool(body.logprobs)
        self._frame = Frame(serving, body, "chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion")

    def opening(self, index: int) -> bytes:
        """The chunk that names the role."""
        return self._frame.chunk(ChatChunkChoice(index, Delta(role="assistant", content="")))

    def chunks(self, piece: Piece) -> list[bytes]:
        """The delta, and how it ended in a chunk of its own."""
        found = []
        if piece.text or piece.logprobs:
            found.append(self._frame.chunk(ChatChunkChoice(piece.index, Delta(content=piece.text), self._of(piece))))
        if piece.finish_reason is not None:
            end = ChatChunkChoice(
                piece.index, Delta(), finish_reason=piece.finish_reason, stop_reason=piece.stop_reason
            )
            found.append(self._frame.chunk(end))
        return found

    def last(self, usage: Usage) -> bytes:
        """No choices, only usage."""
        return self._frame.full([], usage)

    def full(self, answers: Sequence[Piece], usage: Usage) -> bytes:
        """The complete answer."""
        choices = [
            ChatChoice(
                piece.index,
                AssistantMessage(content=piece.text),
                piece.finish_reason,
                self._of(piece),
                piece.stop_reason,
            )
            for piece in answers
        ]
        return self._frame.full(choices, usage)

    def _of(self, piece: Piece) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs([self._content_logprob(position) for position in piece.logprobs])

    def _content_logprob(self, position: TokenLogprobs) -> ContentLogprob:
        token_id = position.token_id
        return ContentLogprob(
            self._tokenizer.token_text(token_id),
            clamp(position.logprob),
            list(self._tokenizer.token_bytes(token_id)),
            [
                TopLogprob(self._tokenizer.token_text(top), clamp(logprob), list(self._tokenizer.token_bytes(top)))
                for top, logprob in position.top
            ],
        )


def top_logprobs(body: ChatCompletionBody) -> int | None:
    """How many likeliest tokens to report at each position; None for no log probabilities at all."""
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def routes(serving: Serving) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat_completions(request: Request, body: ChatCompletionBody) -> Response:
        times = Times(request, body.timeout, serving.config.request_timeout)

        async def prepare(model: LoadedModel, admitted: AdmittedRequest) -> tuple[GenerationRequest, Writer]:
            text = await render_chat(serving, model, body.messages, body)
            asked = body.max_completion_tokens or body.max_tokens
            keep = truncated_length(body, asked or 1, model.ready)
            ids = await encode_text(serving, model, text, bool(body.add_special_tokens), "messages", keep)
            prompt = check_prompt(ids, model.ready, "messages")
            max_tokens = answer_length(asked, None, len(prompt), model.ready)
            grammar = await serving.text.run(grammar_of, body)
            logprobs = top_logprobs(body)
            prepared = generation_request(admitted, body, model, [prompt], max_tokens, logprobs, times, grammar)
            return prepared, ChatWriter(serving, body, model.tokenizer)

        return await answer(serving, request, body, times, body.n or 1, prepare)

    return router
