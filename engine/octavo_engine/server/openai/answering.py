"""What all generating endpoints share: admit, prepare, generate, then stream or send at once; end with the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.generation import Generation, GenerationRequest
from octavo_engine.server.limits import AdmittedRequest
from octavo_engine.server.middleware import key_of
from octavo_engine.server.openai.answers import PromptTokensDetails, Usage
from octavo_engine.server.openai.preparation import Times, priority_of
from octavo_engine.server.openai.protocol import GenerationBody
from octavo_engine.server.openai.sse import DONE, EventStream, error_event, event, wait_for_disconnect
from octavo_engine.server.sequence import Piece
from octavo_engine.server.serving import LoadedModel, Serving


class Writer(Protocol):
    """Writes the pieces of one request in an endpoint's own shape, as JSON."""

    def opening(self, index: int) -> bytes | None:
        """What comes before a sequence's first piece."""

    def chunks(self, piece: Piece) -> list[bytes]:
        """A piece: what it adds, then, by itself, how the sequence ended."""

    def last(self, usage: Usage) -> bytes:
        """The chunk with nothing but the usage."""

    def full(self, answers: Sequence[Piece], usage: Usage) -> bytes:
        """The complete answer; one piece for each sequence."""


async def answer(
    serving: Serving,
    request: Request,
    body: GenerationBody,
    times: Times,
    sequences: int,
    prepare: Callable[[LoadedModel, AdmittedRequest], Awaitable[tuple[GenerationRequest, Writer]]],
) -> Response:
    """Run one request from admission to its last byte. `prepare` tokenizes and checks it."""
    model = serving.model()
    serving.check_model(body.model)
    if body.stream_options is not None and not body.stream:
        raise APIError(400, "stream_options: only allowed when stream is true", param="stream_options")
    with serving.running.preparing():
        priority = priority_of(serving, request, body)
        left = times.deadline - time.monotonic()
        admitted = serving.admission.enter(key_of(request.scope), sequences, priority, left)
        try:
            prepared, writer = await prepare(model, admitted)
            admitted.add_tokens(prepared.prompt_tokens, prepared.max_tokens)
        except BaseException:
            admitted.leave()
            raise
        generation = Generation(serving, model.tokenizer, prepared, admitted, request.state.request_id)
    if body.stream:
        usage = bool(body.stream_options and body.stream_options.include_usage)
        return EventStream(stream(generation, writer, usage), generation.run())
    async with generation.run():
        return await while_connected(request, collect_answer(generation, writer))


async def stream(generation: Generation, writer: Writer, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Server-sent events, the last of which is [DONE] or an error."""
    opened: set[int] = set()
    try:
        async for piece in generation:
            if piece.index not in opened:
                opened.add(piece.index)
                if (opening := writer.opening(piece.index)) is not None:
                    yield event(opening)
            for chunk in writer.chunks(piece):
                yield event(chunk)
    except APIError as error:
        yield error_event(error)
        return
    if include_usage:
        yield event(writer.last(usage_of(generation)))
    yield DONE


async def collect_answer(generation: Generation, writer: Writer) -> Response:
    """One JSON body, once all sequences have ended."""
    pieces: list[list[Piece]] = [[] for _ in generation.sequences]
    async for piece in generation:
        pieces[piece.index].append(piece)
    answers = [merge(each) for each in pieces]
    return Response(writer.full(answers, usage_of(generation)), media_type="application/json")


def merge(pieces: Sequence[Piece]) -> Piece:
    """All of one sequence's pieces as one."""
    last = pieces[-1]
    return Piece(
        last.index,
        "".join(piece.text for piece in pieces),
        tuple(logprobs for piece in pieces for logprobs in piece.logprobs),
        last.finish_reason,
        last.stop_reason,
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """The work's response; the work is cancelled when the client goes away."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=499)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def usage_of(generation: Generation) -> Usage:
    """Tokens read and written so far; a prompt counts once, whatever n is."""
    prompt = generation.request.prompt_tokens
    answers = sum(sequence.num_tokens for sequence in generation.sequences)
    cached = sum(sequence.cached_tokens for sequence in generation.sequences[:: generation.request.n])
    return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))
