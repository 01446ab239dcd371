"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.connections.sse import error_event
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.answer import answer
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage, UsageSoFar
from octavo_engine.server.openai.answers.frame import Frame
from octavo_engine.server.openai.answers.objects import TextChoice
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest
from octavo_engine.server.serving import Serving
from octavo_engine.text.logprobs import (
    TextLogprobs,
    TextOffsets,
    id_name,
    join,
    prompt_logprobs,
    prompt_text_logprobs,
    text_logprobs,
)


class TextWriter:
    """Writes the answers of one text completion, as chunks or as one JSON body."""

    keeps_logprobs = False

    def __init__(self, name: str, prepared: PreparedRequest, model: LoadedModel) -> None:
        self._tokenizer = model.tokenizer
        self._has_logprobs = prepared.sampling.logprobs is not None
        self._token_name = id_name if prepared.names_by_id else model.tokenizer.token_text
        self._prepared, self._echoes, self._n = prepared, prepared.echoes, prepared.n
        skips = prepared.text.skip_special_tokens
        self._offsets = [
            TextOffsets(model.tokenizer, len(echo), skip_special_tokens=skips)
            for echo in prepared.echoes
            for _ in range(self._n)
        ]
        self._frame = Frame(name, prepared, "cmpl", "text_completion", model.fingerprint)

    def opening(self, index: int, usage: UsageSoFar) -> list[bytes]:
        """Return the chunk that repeats the prompt, if the client asked for its text or its token ids.

        A text with log probabilities comes in the events of the first output instead, which has them.
        """
        echo = "" if self._prepared.scores_echo else self._echoes[index // self._n]
        if not echo and not self._prepared.token_ids:
            return []
        begun = TextChoice(index, echo)
        if self._prepared.token_ids:
            begun.prompt_token_ids, begun.token_ids = self._prepared.prompts[index // self._n], ()
        return [self._frame.chunk(begun, usage)]

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:
        """Return the chunk of an output's text, and one of its own with the reason why the sequence ended."""
        chunks = []
        if output.prompt_logprobs is not None and self._prepared.scores_echo:
            echo = self._echoes[output.index // self._n]
            chunks.append(self._frame.chunk(TextChoice(output.index, echo, self._of_prompt(output)), usage))
        if output.text or output.logprobs or (output.token_ids and self._prepared.token_ids):
            added = TextChoice(output.index, output.text, self._logprobs_of(output))
            if self._prepared.token_ids:
                added.token_ids = output.token_ids
            chunks.append(self._frame.chunk(added, usage))
        if output.finish_reason is not None:
            end = TextChoice(output.index, "", finish_reason=output.finish_reason, stop_reason=output.stop_reason)
            chunks.append(self._frame.chunk(end, usage))
        return chunks

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the chunk of the usage, if the client asked for it, and [DONE]."""
        return self._frame.closing(usage)

    def failure(self, error: APIError) -> bytes:
        """Return the error event; no [DONE] follows."""
        return error_event(error)

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        return self._frame.full([self._choice(output) for output in answers], usage)

    def _choice(self, output: SequenceOutput) -> TextChoice:
        text = self._echoes[output.index // self._n] + output.text
        logprobs = self._logprobs_of(output)
        if logprobs is not None and self._prepared.scores_echo:
            logprobs = join(self._of_prompt(output), logprobs)
        choice = TextChoice(output.index, text, logprobs, output.finish_reason, output.stop_reason)
        if (num_top := self._prepared.prompt_logprobs) is not None:
            choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs or (), self._tokenizer, num_top)
        if self._prepared.token_ids:
            choice.prompt_token_ids, choice.token_ids = (
                self._prepared.prompts[output.index // self._n],
                output.token_ids,
            )
        return choice

    def _of_prompt(self, output: SequenceOutput) -> TextLogprobs:
        """Return the log probabilities of the prompt, whose offsets the answer's own continue."""
        prompt = output.index // self._n
        text, first = self._echoes[prompt], self._prepared.prompts[prompt][0]
        logprobs, num_top = output.prompt_logprobs or (), self._prepared.sampling.logprobs or 0
        return prompt_text_logprobs(text, first, logprobs, self._tokenizer, num_top, self._token_name)

    def _logprobs_of(self, output: SequenceOutput) -> TextLogprobs | None:
        if not self._has_logprobs:
            return None
        return text_logprobs(output.logprobs, self._tokenizer, self._offsets[output.index], self._token_name)


def routes(serving: Serving) -> APIRouter:
    """Return the route of the endpoint."""
    router = APIRouter()

    @router.post("/v1/completions", response_model=None)
    async def completions(request: Request) -> Response:
        return await answer(serving, request, "completion", TextWriter)

    return router
