"""The first half of answering a request: its body is prepared, and the request is admitted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TypeVar

from starlette.requests import Request

from octavo_engine.engine.info import EngineInfo
from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.admission.limits import AdmittedRequest
from octavo_engine.server.connections.disconnect import while_connected
from octavo_engine.server.errors import APIError, UnfitModelError, answer_too_large, not_an_object, not_json
from octavo_engine.server.generation.engine_requests import engine_requests
from octavo_engine.server.generation.generation import Generation, GenerationRequest
from octavo_engine.server.generation.times import Times, out_of_time
from octavo_engine.server.middleware.body_limit import upload_of
from octavo_engine.server.middleware.metering import arrival_of
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer, Prepared, PreparedRequest
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.access_log import without_keys
from octavo_engine.server.telemetry.tracing import span_of

JobResult = TypeVar("JobResult", Prepared, JSONAnswer)


@dataclass(frozen=True, slots=True)
class AdmittedGeneration:
    """A request that has been prepared and admitted, and whose generation can be run."""

    prepared: PreparedRequest
    generation: Generation
    deadline: float
    """Monotonic seconds."""
    model: LoadedModel


async def prepare_and_admit(serving: Serving, request: Request, job: str) -> AdmittedGeneration | None:
    """Prepare and admit a request; None if its client goes away meanwhile."""
    model = serving.model()
    times = Times(request, serving.config.request_timeout)
    with serving.running.preparing():
        result = await prepare(serving, request, job, model.info, Prepared, times)
        if result is None:
            return None
        prepared = result.request
        adapter = serving.check_model(prepared.model)
        _check_answer_fits(serving, prepared)
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


def _check_answer_fits(serving: Serving, prepared: PreparedRequest) -> None:
    """Raise APIError 400 if vectors would be computed whose answer takes more memory than the key may have."""
    pooled, most = prepared.pooled, serving.unread.share
    if pooled is not None and not pooled.base64 and pooled.json_bytes > most:
        raise answer_too_large(most)


async def prepare(
    serving: Serving, request: Request, job: str, info: EngineInfo, result_type: type[JobResult], times: Times
) -> JobResult | None:
    """Return what the job `job` of a text worker makes of the request's body; None if the client disconnects meanwhile.

    The memory of the body is released. APIError if the request is not valid, names another model, or is not prepared by
    its deadline, as far as that is known: only a text worker reads the body's own timeout.
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
        async with asyncio.timeout(times.left):
            result = await while_connected(request, work)
    except TimeoutError:
        serving.metrics.reject("deadline")
        raise out_of_time("queue_timeout") from None
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
