"""Conversion of a prepared request into requests for the engine."""

from __future__ import annotations

import uuid
from dataclasses import replace

from octavo_engine.core.request import Request
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.admission.limits import AdmittedRequest
from octavo_engine.server.preparation.prepared import PreparedRequest


def engine_requests(
    prepared: PreparedRequest, admitted: AdmittedRequest, seconds_left: float, adapter: AdapterInfo | None = None
) -> tuple[Request, ...]:
    """Return a request for each choice of each prompt, in order. A prompt's later choices are forks of its first.

    `adapter` is None for the base model.
    """
    prefix = uuid.uuid4().hex
    requests: list[Request] = []
    seconds = prepared.second_texts or (0,) * len(prepared.prompts)
    for prompt, second in zip(prepared.prompts, seconds, strict=True):
        first = Request(
            request_id=f"{prefix}-{len(requests)}",
            prompt_token_ids=prompt,
            sampling=prepared.sampling,
            pooled=prepared.pooled is not None,
            second_text=second,
            priority=admitted.priority,
            tenant=admitted.key.name,
            weight=admitted.key.weight,
            # Keeps the cached prefixes of tenants apart, and those of requests with different values of cache_salt.
            cache_salt=f"{admitted.key.name}\n{prepared.cache_salt}",
            adapter="" if adapter is None else adapter.digest,
            timeout=seconds_left,
        )
        requests.append(first)
        for choice in range(1, prepared.n):
            fork = replace(
                first,
                request_id=f"{prefix}-{len(requests)}",
                sampling=_of_choice(prepared.sampling, choice),
                fork_of=first.request_id,
            )
            requests.append(fork)
    return tuple(requests)


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """Return the sampling parameters of a choice: with a seed, each choice gets another one."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % (1 << 63))
