"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.answering import answer
from octavo_engine.server.openai.answers import TextChoice, Usage
from octavo_engine.server.openai.frame import Frame
from octavo_engine.server.openai.sse import error_event
from octavo_engine.server.prepared import PreparedRequest
from octavo_engine.server.sequence import Piece
from octavo_engine.server.serving import Serving
from octavo_engine.text.logprobs import TextLogprobs, join, prompt_logprobs, prompt_text_logprobs, text_logprobs
from octavo_engine.text.tokenizer import Tokenizer


class TextWriter:
    """Answers and chunks of one text completion."""

    def __init__(self, name: str, asked: PreparedRequest, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._logprobs = asked.sampling.logprobs is not None
        self._asked, self._echoes, self._n = asked, asked.echoes, asked.n
        self._offsets = [len(echo) for echo in asked.echoes for _ in range(self._n)]
        self._frame = Frame(name, asked, "cmpl", "text_completion")

    def opening(self, index: int, usage: Usage) -> list[bytes]:
        """The prompt, if it is wanted back; with log probabilities it comes with the first piece, which has them."""
        echo = self._echoes[index // self._n]
        return [self._frame.chunk(TextChoice(index, echo), usage)] if echo and not self._asked.scores_echo else []

    def events(self, piece: Piece, usage: Usage) -> list[bytes]:
        """The text, and how it ended in a chunk of its own."""
        found = []
        if piece.prompt_logprobs is not None and self._asked.scores_echo:
            echo = self._echoes[piece.index // self._n]
            found.append(self._frame.chunk(TextChoice(piece.index, echo, self._of_prompt(piece)), usage))
        if piece.text or piece.logprobs:
            found.append(self._frame.chunk(TextChoice(piece.index, piece.text, self._of(piece)), usage))
        if piece.finish_reason is not None:
            end = TextChoice(piece.index, "", finish_reason=piece.finish_reason, stop_reason=piece.stop_reason)
            found.append(self._frame.chunk(end, usage))
        return found

    def closing(self, usage: Usage) -> list[bytes]:
        """The usage, if it is asked for, and [DONE]."""
        return self._frame.closing(usage)

    def failure(self, error: APIError) -> bytes:
        """The error; no [DONE] follows."""
        return error_event(error)

    def full(self, answers: Sequence[Piece], usage: Usage) -> bytes:
        """The complete answer."""
        return self._frame.full([self._choice(piece) for piece in answers], usage)

    def _choice(self, piece: Piece) -> TextChoice:
        text = self._echoes[piece.index // self._n] + piece.text
        logprobs = self._of(piece)
        if logprobs is not None and self._asked.scores_echo:
            logprobs = join(self._of_prompt(piece), logprobs)
        choice = TextChoice(piece.index, text, logprobs, piece.finish_reason, piece.stop_reason)
        if (most := self._asked.prompt_logprobs) is not None:
            choice.prompt_logprobs = prompt_logprobs(piece.prompt_logprobs or (), self._tokenizer, most)
        return choice

    def _of_prompt(self, piece: Piece) -> TextLogprobs:
        """What precedes the answer's own log probabilities, which then continue the offsets of these."""
        first = self._asked.prompts[piece.index // self._n][0]
        most = self._asked.sampling.logprobs or 0
        return prompt_text_logprobs(first, piece.prompt_logprobs or (), self._tokenizer, most)

    def _of(self, piece: Piece) -> TextLogprobs | None:
        if not self._logprobs:
            return None
        found = text_logprobs(piece.logprobs, self._tokenizer, self._offsets[piece.index])
        self._offsets[piece.index] += sum(map(len, found.tokens))
        return found


def routes(serving: Serving) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        return await answer(serving, request, "completion", TextWriter)

    return router
