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
from octavo_engine.server.connections.sse import EventStream, wait_for_disconnect
from octavo_engine.server.errors import APIError, UnfitModelError, not_an_object, not_json
from octavo_engine.server.generation.engine_requests import engine_requests
from octavo_engine.server.generation.generation import Generation, GenerationRequest
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.middleware.body_limit import upload_of
from octavo_engine.server.middleware.metering import arrival_of
from octavo_engine.server.openai.answers import PromptTokensDetails, Usage, UsageSoFar
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
_LARGE_WORK = 2000
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
class AdmittedGeneration:
    """A request that has been prepared and admitted, and whose generation can be run."""

    prepared: PreparedRequest
    generation: Generation
    deadline: float
    """Monotonic seconds."""
    model: LoadedModel


async def answer(
    serving: Serving, request: Request, job: str, new_writer: Callable[[str, PreparedRequest, LoadedModel], Writer]
) -> Response:
    """Answer one request, from its body to the last byte. `job` names how a text worker prepares the body."""
    if (admitted := await _prepare_and_admit(serving, request, job)) is None:
        return Response(status_code=499)
    writer = new_writer(serving.names[0], admitted.prepared, admitted.model)
    if admitted.prepared.stream:
        return EventStream(stream(admitted.generation, writer), admitted.generation.run(), admitted.deadline)
    return await _full_response(serving, request, admitted, writer)


async def answer_in_full(
    serving: Serving, request: Request, job: str, new_writer: Callable[[str, PreparedRequest], FullWriter]
) -> Response:
    """Answer a request of an endpoint that has no streams."""
    if (admitted := await _prepare_and_admit(serving, request, job)) is None:
        return Response(status_code=499)
    return await _full_response(serving, request, admitted, new_writer(serving.names[0], admitted.prepared))


async def _full_response(
    serving: Serving, request: Request, admitted: AdmittedGeneration, writer: FullWriter
) -> Response:
    async with admitted.generation.run():
        body = await while_connected(request, collect_answer(admitted.generation, writer))
    return Response(status_code=499) if body is None else FullResponse(body, serving.unread, admitted.deadline)


async def _prepare_and_admit(serving: Serving, request: Request, job: str) -> AdmittedGeneration | None:
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
        parameters = GenerationRequest(
            requests=engine_requests(prepared, admitted, times.left, adapter),
            n=prepared.n,
            text=prepared.text,
            arrival=times.arrival,
            model=prepared.model or serving.names[0],
        )
        shown_id = without_keys(request.state.request_id, request.scope)
        generation = Generation(serving, model.tokenizer, parameters, admitted, shown_id, span_of(request.scope))
    return AdmittedGeneration(prepared, generation, times.deadline, model)


async def json_answer(serving: Serving, request: Request, job: str) -> Response:
    """Answer a request whose complete answer is made by the job `job` of a text worker."""
    times = Times(request, serving.config.request_timeout)
    result = await prepare(serving, request, job, serving.model().info, JSONAnswer)
    if result is None:
        return Response(status_code=499)
    serving.check_model(result.model)
    return FullResponse(result.body, serving.unread, times.deadline)


JobResult = TypeVar("JobResult", Prepared, JSONAnswer)


async def prepare(
    serving: Serving, request: Request, job: str, info: EngineInfo, result_type: type[JobResult]
) -> JobResult | None:
    """Return what the job `job` of a text worker makes of the request's body; None if the client disconnects meanwhile.

    The memory of the body is released. APIError if the request is not valid, or names another model.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise not_json(media_type)
    upload = upload_of(request.scope)
    if not upload:
        raise not_an_object()
    try:
        work = serving.text.prepare(key_of(request.scope).name, job, info, upload.take())
        result = await while_connected(request, work)
    except UnfitModelError as error:
        serving.check_model(error.model)
        raise
    finally:
        upload.release()
    if result is not None and not isinstance(result, result_type):
        raise TypeError(f"the text worker's job {job} returned a {type(result).__name__}")
    return result


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
    kept_work = 0
    try:
        async for output in generation:
            if output.index not in opened:
                opened.add(output.index)
                for event in writer.opening(output.index, usage):
                    yield event
            if output.logprobs and writer.keeps_logprobs:
                kept_work += work_of(output)
                generation.keep(output)
            work = work_of(output) if output.finish_reason is None else max(kept_work, work_of(output))
            for event in await off_the_loop_if_large(work, writer.events, output, usage):
                yield event
        closing = await off_the_loop_if_large(kept_work, writer.closing, usage())
    except APIError as error:
        yield writer.failure(error)
        return
    for event in closing:
        yield event


async def collect_answer(generation: Generation, writer: FullWriter) -> bytes:
    """Return one JSON body when all sequences have ended."""
    collected = [_Collected() for _ in generation.sequences]
    async for output in generation:
        collected[output.index].add(output)
        generation.keep(output)
    work = sum(work_of(output) for sequence in collected for output in sequence.outputs)
    return await off_the_loop_if_large(work, _full_answer, writer, collected, usage_of(generation))


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
    if work < _LARGE_WORK:
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
    task = await run_until(work, wait_for_disconnect(request.receive))
    return None if task.cancelled() else task.result()


def usage_of(generation: Generation) -> Usage:
    """Return the usage so far; a prompt counts once, however many choices it has."""
    prompt = generation.request.prompt_tokens
    answers = sum(sequence.num_tokens for sequence in generation.sequences)
    cached = sum(sequence.cached_tokens for sequence in generation.sequences[:: generation.request.n])
    return Usage(prompt, answers, prompt + answers, PromptTokensDetails(cached))
