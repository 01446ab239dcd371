"""The code that all generating endpoints share: it answers a request, from its body to the last byte.

The answer is sent as a stream or as one JSON body. A request ends when its client disconnects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.connections.disconnect import while_connected
from octavo_engine.server.connections.full_response import FullResponse
from octavo_engine.server.connections.sse import EventStream
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.admitted_generation import AdmittedGeneration, prepare, prepare_and_admit
from octavo_engine.server.generation.collected_outputs import CollectedOutputs
from octavo_engine.server.generation.generation import Generation
from octavo_engine.server.generation.off_the_loop import off_the_loop_if_large, work_of
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.times import Times
from octavo_engine.server.generation.usage import PromptTokensDetails, Usage, UsageSoFar
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer, PreparedRequest
from octavo_engine.server.serving import Serving

_LARGE_EVENT = 64 << 10
"""Bytes of an event above which it counts: those of `/v1/responses` repeat all tools, which may have megabytes."""


class FullWriter(Protocol):
    """Writes one request's answer in an endpoint's own shape, as one JSON body."""

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer. `answers` has one output for each sequence."""


class Writer(FullWriter, Protocol):
    """Writes one request's answer in an endpoint's own shape: as server-sent events, or as one JSON body."""

    @property
    def keeps_logprobs(self) -> bool:
        """True if the last events of a stream repeat all log probabilities, which are in memory until then."""
        ...

    def opening(self, index: int, usage: UsageSoFar) -> Iterable[bytes]:
        """Return the events that come before a sequence's first output."""

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:
        """Return the events of an output: first what it adds, then, in an event of its own, how the sequence ended."""

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the events that end a stream whose sequences have all ended."""

    def failure(self, error: APIError) -> bytes:
        """Return the event that ends a stream that failed."""


async def answer(
    serving: Serving, request: Request, job: str, new_writer: Callable[[str, PreparedRequest, LoadedModel], Writer]
) -> Response:
    """Answer one request, from its body to the last byte. `job` names how a text worker prepares the body."""
    if (admitted := await prepare_and_admit(serving, request, job)) is None:
        return Response(status_code=499)
    writer = new_writer(serving.names[0], admitted.prepared, admitted.model)
    if admitted.prepared.stream:
        return EventStream(stream(admitted.generation, writer), admitted.generation.run(), admitted.deadline)
    return await _full_response(serving, request, admitted, writer)


async def answer_in_full(
    serving: Serving, request: Request, job: str, new_writer: Callable[[str, PreparedRequest], FullWriter]
) -> Response:
    """Answer a request of an endpoint that has no streams."""
    if (admitted := await prepare_and_admit(serving, request, job)) is None:
        return Response(status_code=499)
    return await _full_response(serving, request, admitted, new_writer(serving.names[0], admitted.prepared))


async def _full_response(
    serving: Serving, request: Request, admitted: AdmittedGeneration, writer: FullWriter
) -> Response:
    async with admitted.generation.run():
        body = await while_connected(request, collect_answer(admitted.generation, writer))
    return Response(status_code=499) if body is None else FullResponse(body, serving.unread, admitted.deadline)


async def json_answer(serving: Serving, request: Request, job: str) -> Response:
    """Answer a request whose complete answer is made by the job `job` of a text worker."""
    times = Times(request, serving.config.request_timeout)
    result = await prepare(serving, request, job, serving.model().info, JSONAnswer, times)
    if result is None:
        return Response(status_code=499)
    serving.check_model(result.model)
    return FullResponse(result.body, serving.unread, times.deadline)


async def stream(generation: Generation, writer: Writer) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events until all sequences have ended, or the first one has failed."""
    opened: set[int] = set()
    usage, sent = partial(usage_of, generation), _SentEvents(generation)
    kept_work = 0
    try:
        async for output in generation:
            if output.index not in opened:
                opened.add(output.index)
                for event in writer.opening(output.index, usage):
                    yield sent.counted(event)
            if output.logprobs and writer.keeps_logprobs:
                kept_work += work_of(output)
                generation.keep(output)
            work = work_of(output) if output.finish_reason is None else max(kept_work, work_of(output))
            for event in await off_the_loop_if_large(work, writer.events, output, usage):
                yield sent.counted(event)
        for event in await off_the_loop_if_large(kept_work, writer.closing, usage()):
            yield sent.counted(event)
    except APIError as error:
        yield writer.failure(error)


class _SentEvents:
    """Counts a stream's large events in the budget of unread answers, each until the one after it has been sent."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._last = self._second_last = 0
        """The bytes that count of the two latest events."""

    def counted(self, event: bytes) -> bytes:
        """Return an event that is sent next, once the one before it has been sent; an APIError if it has no room."""
        size = len(event) if len(event) > _LARGE_EVENT else 0
        if change := size - self._second_last:
            self._generation.count(change)
        self._last, self._second_last = size, self._last
        return event


async def collect_answer(generation: Generation, writer: FullWriter) -> bytes:
    """Return one JSON body when all sequences have ended."""
    collected = [CollectedOutputs() for _ in generation.sequences]
    async for output in generation:
        collected[output.index].add(output)
        generation.keep(output)
    work = sum(work_of(output) for sequence in collected for output in sequence.outputs)
    return await off_the_loop_if_large(work, _full_answer, writer, collected, usage_of(generation))


def _full_answer(writer: FullWriter, collected: Sequence[CollectedOutputs], usage: Usage) -> bytes:
    return writer.full([each.merged() for each in collected], usage)


def usage_of(generation: Generation) -> Usage:
    """Return the usage so far; a prompt counts once, however many choices it has."""
    prompt = generation.request.prompt_tokens
    answers = sum(sequence.num_tokens for sequence in generation.sequences)
    cached = sum(sequence.cached_tokens for sequence in generation.sequences[:: generation.request.n])
    return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))
