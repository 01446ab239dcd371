"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.generation import GenerationRequest
from octavo_engine.server.limits import AdmittedRequest
from octavo_engine.server.openai.answering import Writer, answer
from octavo_engine.server.openai.answers import TextChoice, Usage
from octavo_engine.server.openai.frame import Frame
from octavo_engine.server.openai.preparation import Times, answer_length, generation_request
from octavo_engine.server.openai.prompts import check_prompt, encode_text, truncated_length
from octavo_engine.server.openai.protocol import CompletionBody
from octavo_engine.server.openai.structured_outputs import grammar_of
from octavo_engine.server.sequence import Piece
from octavo_engine.server.serving import LoadedModel, Serving
from octavo_engine.text.logprobs import TextLogprobs, text_logprobs
from octavo_engine.text.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 16


class TextWriter:
    """Answers and chunks of one text completion."""

    def __init__(self, serving: Serving, body: CompletionBody, tokenizer: Tokenizer, echoes: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._logprobs = body.logprobs is not None
        self._echoes = echoes
        """What each prompt's answers begin with; empty texts unless the request wants its prompt back."""
        self._n = body.n or 1
        self._offsets = [len(echo) for echo in echoes for _ in range(self._n)]
        self._frame = Frame(serving, body, "cmpl", "text_completion")

    def opening(self, index: int) -> bytes | None:
        """The prompt, if it is wanted back."""
        echo = self._echoes[index // self._n]
        return self._frame.chunk(TextChoice(index, echo)) if echo else None

    def chunks(self, piece: Piece) -> list[bytes]:
        """The text, and how it ended in a chunk of its own."""
        found = []
        if piece.text or piece.logprobs:
            found.append(self._frame.chunk(TextChoice(piece.index, piece.text, self._of(piece))))
        if piece.finish_reason is not None:
            end = TextChoice(piece.index, "", finish_reason=piece.finish_reason, stop_reason=piece.stop_reason)
            found.append(self._frame.chunk(end))
        return found

    def last(self, usage: Usage) -> bytes:
        """No choices, only usage."""
        return self._frame.full([], usage)

    def full(self, answers: Sequence[Piece], usage: Usage) -> bytes:
        """The complete answer."""
        choices = [
            TextChoice(
                piece.index,
                self._echoes[piece.index // self._n] + piece.text,
                self._of(piece),
                piece.finish_reason,
                piece.stop_reason,
            )
            for piece in answers
        ]
        return self._frame.full(choices, usage)

    def _of(self, piece: Piece) -> TextLogprobs | None:
        if not self._logprobs:
            return None
        found = text_logprobs(piece.logprobs, self._tokenizer, self._offsets[piece.index])
        self._offsets[piece.index] += sum(map(len, found.tokens))
        return found


async def _encode_prompts(serving: Serving, model: LoadedModel, body: CompletionBody) -> list[list[int]]:
    keep = truncated_length(body, body.max_tokens or _DEFAULT_MAX_TOKENS, model.ready)
    special = body.add_special_tokens is not False
    found = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            ids = await encode_text(serving, model, prompt, special, "prompt", keep)
        else:
            ids = prompt if keep is None else prompt[-keep:]
        found.append(check_prompt(ids, model.ready, "prompt"))
    return found


def _check_echo(body: CompletionBody) -> None:
    if body.echo and body.logprobs is not None:
        message = "echo: log probabilities of the prompt are not supported by this version yet"
        raise APIError(400, message, param="echo", code="unsupported_parameter")


def _echoes(body: CompletionBody, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> list[str]:
    """What each prompt's answers begin with: the prompt, as far as it was kept, if the request wants it back."""
    if not body.echo:
        return [""] * len(prompts)
    kept = body.truncate_prompt_tokens is None
    return [
        text if isinstance(text, str) and kept else tokenizer.decode(ids)
        for text, ids in zip(body.prompt, prompts, strict=True)
    ]


def routes(serving: Serving) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(request: Request, body: CompletionBody) -> Response:
        times = Times(request, body.timeout, serving.config.request_timeout)

        async def prepare(model: LoadedModel, admitted: AdmittedRequest) -> tuple[GenerationRequest, Writer]:
            _check_echo(body)
            prompts = await _encode_prompts(serving, model, body)
            writer = TextWriter(serving, body, model.tokenizer, _echoes(body, model.tokenizer, prompts))
            longest = max(map(len, prompts))
            max_tokens = answer_length(body.max_tokens, _DEFAULT_MAX_TOKENS, longest, model.ready)
            grammar = await serving.text.run(grammar_of, body)
            return generation_request(admitted, body, model, prompts, max_tokens, body.logprobs, times, grammar), writer

        return await answer(serving, request, body, times, len(body.prompt) * (body.n or 1), prepare)

    return router
