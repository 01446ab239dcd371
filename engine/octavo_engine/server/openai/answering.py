"""The code that all generating endpoints share: it prepares, admits and runs a request, and sends the answer.

The answer is sent as a stream or as one JSON body. A request ends when its client disconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.engine.info import EngineInfo
from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.limits import AdmittedRequest
from octavo_engine.server.connections.full_response import FullResponse
from octavo_engine.server.errors import APIError, UnfitModelError, not_an_object, not_json
from octavo_engine.server.generation.engine_requests import engine_requests
from octavo_engine.server.generation.generation import Generation, GenerationRequest
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.middleware.body_limit import upload_of
from octavo_engine.server.middleware.metering import arrival_of
from octavo_engine.server.openai.answers import PromptTokensDetails, Usage, UsageSoFar
from octavo_engine.server.openai.sse import EventStream, wait_for_disconnect
from octavo_engine.server.openai.times import Times
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer, Prepared, PreparedRequest
from octavo_engine.server.run_until import run_until
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.access_log import without_keys
from octavo_engine.server.telemetry.tracing import span_of

Result = TypeVar("Result")
Written = TypeVar("Written")
Arguments = ParamSpec("Arguments")
_LARGE = 2000
"""The amount of work (`work_of`) from which outputs are written in a thread, as it takes about 10 ms."""


_MERGED_AT_ONCE = 64
"""Outputs of a sequence that are merged while the others are computed."""


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

    def opening(self, index: int, usage: UsageSoFar) -> list[bytes]:
        """Return the events that come before a sequence's first output."""

    def events(self, output: SequenceOutput, usage: UsageSoFar) -> list[bytes]:
        """Return the events of an output: first what it adds, then, in an event of its own, how the sequence ended."""

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the events that end a stream whose sequences have all ended."""

    def failure(self, error: APIError) -> bytes:
        """Return the event that ends a stream that failed."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A request that has been prepared and admitted, and whose generation can be run."""

    prepared: PreparedRequest
    generation: Generation
    deadline: float
    """Monotonic seconds."""
    model: LoadedModel


async def answer(
    serving: Serving, request: Request, job: str, writer: Callable[[str, PreparedRequest, LoadedModel], Writer]
) -> Response:
    """Answer one request, from its body to the last byte. `job` names how a text worker prepares the body."""
    if (begun := await _begin(serving, request, job)) is None:
        return Response(status_code=499)
    written = writer(serving.names[0], begun.prepared, begun.model)
    if begun.prepared.stream:
        return EventStream(stream(begun.generation, written), begun.generation.run(), begun.deadline)
    return await _full_response(serving, request, begun, written)


async def answer_in_full(
    serving: Serving, request: Request, job: str, writer: Callable[[str, PreparedRequest], FullWriter]
) -> Response:
    """Answer a request of an endpoint that has no streams."""
    if (begun := await _begin(serving, request, job)) is None:
        return Response(status_code=499)
    return await _full_response(serving, request, begun, writer(serving.names[0], begun.prepared))


async def _full_response(serving: Serving, request: Request, begun: Begun, writer: FullWriter) -> Response:
    async with begun.generation.run():
        found = await while_connected(request, collect_answer(begun.generation, writer))
    return Response(status_code=499) if found is None else FullResponse(found, serving.unread, begun.deadline)


async def _begin(serving: Serving, request: Request, job: str) -> Begun | None:
    """Prepare and admit a request; None if its client goes away meanwhile."""
    model = serving.model()
    times = Times(request, serving.config.request_timeout)
    with serving.running.preparing():
        result = await prepare(serving, request, job, model.info, Prepared)
        if result is None:
            return None
        prepared = result.request
        adapter = serving.check_model(prepared.model)
        times.shorten(prepared.timeout)
        admitted = _admit(serving, request, result, times)
        requests = GenerationRequest(
            requests=engine_requests(prepared, admitted, times.left, adapter),
            n=prepared.n,
            text=prepared.text,
            arrival=times.arrival,
            model=prepared.model or serving.names[0],
        )
        shown_id = without_keys(request.state.request_id, request.scope)
        generation = Generation(serving, model.tokenizer, requests, admitted, shown_id, span_of(request.scope))
    return Begun(prepared, generation, times.deadline, model)


async def json_answer(serving: Serving, request: Request, job: str) -> Response:
    """Answer a request whose complete answer is made by the job `job` of a text worker."""
    times = Times(request, serving.config.request_timeout)
    found = await prepare(serving, request, job, serving.model().info, JSONAnswer)
    if found is None:
        return Response(status_code=499)
    serving.check_model(found.model)
    return FullResponse(found.body, serving.unread, times.deadline)


Wanted = TypeVar("Wanted", Prepared, JSONAnswer)


async def prepare(
    serving: Serving, request: Request, job: str, engine: EngineInfo, wanted: type[Wanted]
) -> Wanted | None:
    """Return what the job `job` of a text worker makes of the request's body; None if the client disconnects meanwhile.

    The memory of the body is released. APIError if the request is not valid, or names another model.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise not_json(kind)
    upload = upload_of(request.scope)
    if not upload:
        raise not_an_object()
    try:
        work = serving.text.prepare(key_of(request.scope).name, job, engine, upload.take())
        found = await while_connected(request, work)
    except UnfitModelError as error:
        serving.check_model(error.model)
        raise
    finally:
        upload.release()
    if found is not None and not isinstance(found, wanted):
        raise TypeError(f"the text worker's job {job} returned a {type(found).__name__}")
    return found


def _admit(serving: Serving, request: Request, result: Prepared, times: Times) -> AdmittedRequest:
    """Admit a request; RefusedError if there is no room, APIError 400 for a priority that would have no effect."""
    prepared = result.request
    if prepared.priority and not serving.priorities:
        message = "priority: has no effect without --scheduling-policy or --prefix-cache-policy priority"
        raise APIError(400, message, param="priority", code="unsupported_parameter")
    key = key_of(request.scope)
    if (arrival := arrival_of(request.scope)) is not None:
        arrival.leave_queue()
    admitted = serving.admission.enter(key, prepared.sequences, key.priority_of(prepared.priority), times.left)
    try:
        admitted.size = serving.accepted.hold(key)
        admitted.size.add(result.size)
        admitted.add_tokens(prepared.prompt_tokens, prepared.sampling.max_tokens)
    except BaseException:
        admitted.leave()
        raise
    return admitted


async def stream(generation: Generation, writer: Writer) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events until all sequences have ended, or the first one has failed."""
    opened: set[int] = set()
    usage = partial(usage_of, generation)
    kept = 0
    try:
        async for output in generation:
            if output.index not in opened:
                opened.add(output.index)
                for each in writer.opening(output.index, usage):
                    yield each
            if output.logprobs and writer.keeps_logprobs:
                kept += work_of(output)
                generation.keep(output)
            work = work_of(output) if output.finish_reason is None else max(kept, work_of(output))
            for each in await off_the_loop_if_large(work, writer.events, output, usage):
                yield each
        last = await off_the_loop_if_large(kept, writer.closing, usage())
    except APIError as error:
        yield writer.failure(error)
        return
    for each in last:
        yield each


async def collect_answer(generation: Generation, writer: FullWriter) -> bytes:
    """Return one JSON body when all sequences have ended."""
    collected = [_Collected() for _ in generation.sequences]
    async for output in generation:
        collected[output.index].add(output)
        generation.keep(output)
    every = [output for each in collected for output in each.outputs]
    return await off_the_loop_if_large(sum(map(work_of, every)), _full_answer, writer, collected, usage_of(generation))


class _Collected:
    """All outputs of one sequence so far. Most are one token, and take much less memory when many have been merged."""

    def __init__(self) -> None:
        self._merged: list[SequenceOutput] = []
        self._single: list[SequenceOutput] = []

    def add(self, output: SequenceOutput) -> None:
        """Append an output."""
        self._single.append(output)
        if len(self._single) == _MERGED_AT_ONCE:
            self._merged.append(merge(self._single))
            self._single.clear()

    @property
    def outputs(self) -> list[SequenceOutput]:
        """The outputs, some of them merged."""
        return [*self._merged, *self._single]


def _full_answer(writer: FullWriter, collected: Sequence[_Collected], usage: Usage) -> bytes:
    return writer.full([merge(each.outputs) for each in collected], usage)


async def off_the_loop_if_large(
    work: int, write: Callable[Arguments, Written], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Written:
    """Return the result of `write`, called in a thread if so much work would block the event loop noticeably."""
    if work < _LARGE:
        return write(*args, **kwargs)
    return await asyncio.to_thread(write, *args, **kwargs)


def work_of(output: SequenceOutput) -> int:
    """Return the amount of work to write an output, in units of one number or 64 characters."""
    work = 1 + len(output.text) // 64 + len(output.pooled) // 4
    if output.logprobs or output.prompt_logprobs:
        work += sum(1 + len(each.top) for each in (*output.logprobs, *(output.prompt_logprobs or ())))
    return work


def merge(outputs: Sequence[SequenceOutput]) -> SequenceOutput:
    """Merge all outputs of one sequence into one."""
    last = outputs[-1]
    return SequenceOutput(
        last.index,
        "".join(output.text for output in outputs),
        tuple(logprobs for output in outputs for logprobs in output.logprobs),
        last.finish_reason,
        last.stop_reason,
        outputs[0].prompt_logprobs,
        outputs[0].pooled,
        tuple(token for output in outputs for token in output.token_ids),
    )


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of the work; None, after cancelling the work, if the client goes away."""
    working = await run_until(work, wait_for_disconnect(request.receive))
    return None if working.cancelled() else working.result()


def usage_of(generation: Generation) -> Usage:
    """Return the usage so far; a prompt counts once, however many choices it has."""
    prompt = generation.request.prompt_tokens
    answers = sum(sequence.num_tokens for sequence in generation.sequences)
    cached = sum(sequence.cached_tokens for sequence in generation.sequences[:: generation.request.n])
    return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))
