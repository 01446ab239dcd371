"""From a client's body and its prompts' tokens to the engine's requests: what chat and text completions share."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from starlette.requests import Request as HTTPRequest

from octavo_engine.core.request import Request
from octavo_engine.core.sampling_params import LEAST_TOP_P, SamplingParams
from octavo_engine.engine.info import EngineInfo
from octavo_engine.server.auth import Key
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation import GenerationRequest
from octavo_engine.server.limits import AdmittedRequest
from octavo_engine.server.middleware import key_of
from octavo_engine.server.openai.fields import MAX_TIMEOUT, MIN_TIMEOUT
from octavo_engine.server.openai.protocol import GenerationBody
from octavo_engine.server.sequence import TextOptions
from octavo_engine.server.serving import LoadedModel, Serving

_GREEDY = 1e-5
_LOWEST_TEMPERATURE = 0.01
_SHORTEST = 0.001
"""Seconds that a request gets whose deadline has passed while its prompt was tokenized."""
_TIMEOUT_HEADER = "X-Request-Timeout"
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class Times:
    """When a request came and until when it may run: the smallest of its two timeouts and the server's."""

    def __init__(self, request: HTTPRequest, asked: float | None, longest: float) -> None:
        self.arrival = time.monotonic()
        self.deadline = self.arrival + min(asked or longest, _header_timeout(request) or longest, longest)


def _header_timeout(request: HTTPRequest) -> float | None:
    if (text := request.headers.get(_TIMEOUT_HEADER)) is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        message = f"{_TIMEOUT_HEADER}: must be a number of seconds from {MIN_TIMEOUT} to {MAX_TIMEOUT}, such as 2.5"
        raise APIError(400, message, param=_TIMEOUT_HEADER)
    return seconds


def generation_request(
    admitted: AdmittedRequest,
    body: GenerationBody,
    model: LoadedModel,
    prompts: list[list[int]],
    max_tokens: int,
    logprobs: int | None,
    times: Times,
    grammar: str | None,
) -> GenerationRequest:
    """What is to be generated for these prompts' token ids; APIError 400 for what the model does not have."""
    _check_ends(body, model, grammar)
    if body.min_tokens is not None and body.min_tokens > max_tokens:
        raise APIError(400, f"min_tokens: {body.min_tokens} is more than max_tokens, {max_tokens}", param="min_tokens")
    sampling = replace(_sampling_params(body, model, max_tokens, logprobs), grammar=grammar)
    return GenerationRequest(
        requests=_requests(admitted, body, prompts, sampling, times),
        n=body.n or 1,
        text=TextOptions(
            stop=tuple(body.stop or ()),
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            ends=_model_ends(body, model),
        ),
        arrival=times.arrival,
    )


def _check_ends(body: GenerationBody, model: LoadedModel, grammar: str | None) -> None:
    """APIError 400 if a grammar is asked for and something that keeps the answer from ending where the grammar does."""
    if grammar is None:
        return
    if not model.ready.eos_token_ids:
        message = "this model names no token that ends an answer, so its answers cannot follow a schema or grammar"
        raise APIError(400, message, param="response_format", code="unsupported_parameter")
    for param, value in (("ignore_eos", body.ignore_eos), ("min_tokens", body.min_tokens)):
        if value:
            message = f"{param}: an answer that follows a schema or grammar ends where that does; leave {param} out"
            raise APIError(400, message, param=param)


def _requests(
    admitted: AdmittedRequest, body: GenerationBody, prompts: list[list[int]], sampling: SamplingParams, times: Times
) -> tuple[Request, ...]:
    """The engine's requests: each prompt's choices one after another, the later ones forks of the first."""
    name = uuid.uuid4().hex
    found: list[Request] = []
    for prompt in prompts:
        first = Request(
            request_id=f"{name}-{len(found)}",
            prompt_token_ids=tuple(prompt),
            sampling=sampling,
            priority=admitted.priority,
            tenant=admitted.key.name,
            weight=admitted.key.weight,
            cache_salt=_cache_salt(admitted.key, body),
            timeout=max(_SHORTEST, times.deadline - time.monotonic()),
        )
        found.append(first)
        for choice in range(1, body.n or 1):
            fork = replace(
                first,
                request_id=f"{name}-{len(found)}",
                sampling=_of_choice(sampling, choice),
                fork_of=first.request_id,
            )
            found.append(fork)
    return tuple(found)


def _of_choice(sampling: SamplingParams, choice: int) -> SamplingParams:
    """A seed gives each choice another answer."""
    if sampling.seed is None:
        return sampling
    return replace(sampling, seed=(sampling.seed + choice) % (1 << 63))


def _sampling_params(body: GenerationBody, model: LoadedModel, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """The engine's parameters: what the body says, else what the model wants, else the declared default.

    A field of the body is copied by its name, through `_MEANINGS` where a client's value means another one.
    APIError 400 for tokens that the model does not have.
    """
    _check_tokens(body, model.ready)
    names = (field.name for field in fields(SamplingParams))
    given = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    values = asdict(model.ready.sampling) | given
    for name, meaning in _MEANINGS.items():
        if name in values:
            values[name] = meaning(values[name])
    ends = (*_model_ends(body, model), *(body.stop_token_ids or ()))
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "stop_token_ids": tuple(dict.fromkeys(ends))}
    return SamplingParams(**values)


def _temperature(asked: float) -> float:
    """As vLLM: what is nearly 0 is greedy, and logits are not divided by less than 0.01."""
    return 0.0 if asked < _GREEDY else max(asked, _LOWEST_TEMPERATURE)


_MEANINGS: Mapping[str, Callable[[Any], Any]] = {
    "temperature": _temperature,
    "top_k": lambda asked: max(0, asked),
    "top_p": lambda asked: max(asked, LEAST_TOP_P),
    "seed": lambda asked: asked % (1 << 63),
    "logit_bias": lambda asked: tuple((int(token), bias) for token, bias in asked.items()),
}
"""What the engine is given for a client's value of a field, where that is not the value itself."""


def _check_tokens(body: GenerationBody, ready: EngineInfo) -> None:
    for param, ids in (("stop_token_ids", body.stop_token_ids or ()), ("logit_bias", map(int, body.logit_bias or ()))):
        if (wrong := next((token for token in ids if token >= ready.vocab_size), None)) is not None:
            raise APIError(400, f"{param}: token {wrong} is none of the model's {ready.vocab_size}", param=param)


def _model_ends(body: GenerationBody, model: LoadedModel) -> tuple[int, ...]:
    """The model's own end tokens, unless the request ignores them."""
    return () if body.ignore_eos else tuple(model.ready.eos_token_ids)


def answer_length(asked: int | None, default: int | None, longest_prompt: int, ready: EngineInfo) -> int:
    """max_tokens: what was asked for, or `default`, or all the room there is; APIError 400 if it does not fit."""
    room = ready.max_model_len - longest_prompt
    wanted = asked if asked is not None else min(default, room) if default is not None else room
    if room < 1 or wanted > room:
        need = longest_prompt + max(wanted, 1)
        raise APIError(
            400,
            f"this model's context is {ready.max_model_len} tokens; {longest_prompt} in the prompt and "
            f"{max(wanted, 1)} for the answer make {need}. Shorten the prompt or ask for fewer tokens by "
            f"{need - ready.max_model_len} (or serve with a larger --max-model-len)",
            param="messages" if default is None else "prompt",
            code="context_length_exceeded",
        )
    return wanted


def _cache_salt(key: Key, body: GenerationBody) -> str:
    """Keeps tenants' cached prefixes apart, and within a tenant those that a request wants apart."""
    return f"{key.name}\n{body.cache_salt or ''}"


def priority_of(serving: Serving, request: HTTPRequest, body: GenerationBody) -> int:
    """The request's turn: the lower, the earlier, and none earlier than its key allows.

    APIError 400 if it asks for one where it would not act.
    """
    if body.priority and not serving.priorities:
        message = "priority: acts only with --scheduling-policy or --prefix-cache-policy priority"
        raise APIError(400, message, param="priority", code="unsupported_parameter")
    return key_of(request.scope).priority_of(body.priority)
