"""Makes the prepared request of a body and of its prompts' token ids, for chat and text completions alike.

This code runs in a text worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from octavo_engine.engine.info import EngineInfo
from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.sampling_params import LEAST_TOP_P, SamplingParams
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.field_types import MAX_SEQUENCES
from octavo_engine.server.openai.preparation.prompts import beyond_context
from octavo_engine.server.openai.protocol import GenerationBody
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest, TextOptions
from octavo_engine.text.tokenizer import Tokenizer

MAX_REPORTED = 1024
"""The most log probabilities that one request may report at each step: prompts × n × (logprobs + 1)."""
MAX_PROMPT_LOGPROBS = 1 << 17
"""The most log probabilities of prompts in one request: tokens of prompts × n × (likeliest tokens + 1)."""
PLAIN = AnswerForm()
"""The form of an answer that is nothing but text."""
_GREEDY = 1e-5
_LOWEST_TEMPERATURE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointFields:
    """What chat and text completions each read from fields of their own."""

    prompts: Sequence[Sequence[int]]
    """The prompts' token ids."""
    max_tokens: int
    logprobs: int | None
    """How many likeliest tokens are reported at each position; None: no log probabilities at all."""
    grammar: str | None
    """The grammar that answers follow, for llguidance; None: any text."""
    form: AnswerForm = PLAIN
    echoes: Sequence[str] = ()
    """The text with which each prompt's answers begin; empty: nothing for any of them."""
    scores_echo: bool = False
    """Whether the answer has the log probabilities of the prompt that it repeats."""


def prepared_request(body: GenerationBody, model: LoadedModel, own: EndpointFields) -> PreparedRequest:
    """Return the prepared request of a body and of the fields that only its endpoint has.

    Raises APIError 400 if the request asks for what the model does not have.
    """
    max_tokens, form = own.max_tokens, own.form
    _check_ends(body, model, own.grammar)
    _check_choices(body)
    if body.stream_options is not None and not body.stream:
        raise APIError(400, "stream_options: only allowed when stream is true", param="stream_options")
    if body.min_tokens is not None and body.min_tokens > max_tokens:
        raise APIError(400, f"min_tokens: {body.min_tokens} is more than max_tokens, {max_tokens}", param="min_tokens")
    sampling = replace(_sampling_params(body, model, max_tokens, own.logprobs), grammar=own.grammar)
    if own.scores_echo:
        sampling = replace(sampling, prompt_logprobs=max(own.logprobs or 0, body.prompt_logprobs or 0))
    _check_prompt_logprobs(body, sampling, sum(map(len, own.prompts)))
    return PreparedRequest(
        prompts=tuple(map(tuple, own.prompts)),
        echoes=tuple(own.echoes or [""] * len(own.prompts)),
        n=body.n or 1,
        sampling=sampling,
        text=_text_options(body, model, form, scores_echo=own.scores_echo),
        form=form,
        prompt_logprobs=body.prompt_logprobs,
        scores_echo=own.scores_echo,
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        continuous_usage=bool(body.stream_options and body.stream_options.continuous_usage_stats),
        token_ids=bool(body.return_token_ids),
        names_by_id=bool(body.return_tokens_as_token_ids),
        timeout=body.timeout,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )


def _text_options(body: GenerationBody, model: LoadedModel, form: AnswerForm, *, scores_echo: bool) -> TextOptions:
    includes_stop, shows_special = bool(body.include_stop_str_in_output), body.skip_special_tokens is False
    return TextOptions(
        stop=tuple(body.stop or ()),
        include_stop=includes_stop,
        include_end=includes_stop and shows_special and form.plain,
        skip_special_tokens=not (shows_special or form.special),
        ends=_model_ends(body, model),
        end_logprobs=scores_echo,  # lm-eval drops the last entry without a look at its token
    )


def _check_ends(body: GenerationBody, model: LoadedModel, grammar: str | None) -> None:
    """Raise APIError 400 if the request has a grammar, and the answer could not end where the grammar ends."""
    if grammar is None:
        return
    if not model.info.eos_token_ids:
        message = "this model names no token that ends an answer, so its answers cannot follow a schema or grammar"
        raise APIError(400, message, param="response_format", code="unsupported_parameter")
    contrary = {
        "ignore_eos": body.ignore_eos,
        "min_tokens": body.min_tokens,
        "allowed_token_ids": body.allowed_token_ids,
    }
    for param, value in contrary.items():
        if value:
            message = f"{param}: cannot be combined with a schema or grammar; leave {param} out"
            raise APIError(400, message, param=param)


def _check_choices(body: GenerationBody) -> None:
    """Raise APIError 400 for a best_of that would require ranking answers."""
    if body.best_of is not None and body.best_of != (body.n or 1):
        message = (
            f"best_of: ranking answers is not supported by this version yet, so {body.best_of} must be n, "
            f"{body.n or 1}; leave it out, or ask for more choices by n and their logprobs, and rank them"
        )
        raise APIError(400, message, param="best_of", code="unsupported_parameter")


def check_sequences(body: GenerationBody, prompts: int, logprobs: int | None) -> None:
    """Raise APIError 400 if a request asks for too many answers, or for too many log probabilities at each step."""
    if (sequences := prompts * (body.n or 1)) > MAX_SEQUENCES:
        message = (
            f"n: {prompts} prompts with n {body.n or 1} make {sequences} answers, more than {MAX_SEQUENCES} in one "
            "request; send several requests"
        )
        raise APIError(400, message, param="n")
    reported = prompts * (body.n or 1) * (logprobs + 1 if logprobs is not None else 1)
    if reported > MAX_REPORTED:
        raise APIError(
            400,
            f"{prompts} prompts with n {body.n or 1} and logprobs {logprobs} report {reported} log probabilities at "
            f"each step, more than {MAX_REPORTED}; lower one of the three, or send the prompts in several requests",
            param="logprobs",
        )


def _check_prompt_logprobs(body: GenerationBody, sampling: SamplingParams, prompt_tokens: int) -> None:
    """Raise APIError 400 if a prompt's log probabilities are asked for in a stream, or are too many for one answer."""
    if body.prompt_logprobs is not None and body.stream:
        message = "prompt_logprobs: not in a stream; leave stream out"
        raise APIError(400, message, param="prompt_logprobs", code="unsupported_parameter")
    if (top := sampling.prompt_logprobs) is None:
        return
    reported = prompt_tokens * (body.n or 1) * (top + 1)
    if reported > MAX_PROMPT_LOGPROBS:
        raise APIError(
            400,
            f"{prompt_tokens} tokens of prompts with n {body.n or 1} and {top} of the likeliest tokens "
            f"at each position make {reported} log probabilities, more than {MAX_PROMPT_LOGPROBS} in one request; send "
            f"the prompts in {-(-reported // MAX_PROMPT_LOGPROBS)} requests, or ask for fewer of the likeliest tokens",
            param="prompt_logprobs" if body.prompt_logprobs is not None else "logprobs",
        )


def _sampling_params(body: GenerationBody, model: LoadedModel, max_tokens: int, logprobs: int | None) -> SamplingParams:
    """Return the sampling parameters: the body's, else the model's defaults, else the declared defaults.

    A field of the body is copied by its name, through `_CONVERSIONS` where a client's value means another one.
    APIError 400 for tokens that the model does not have.
    """
    _check_tokens(body, model.info)
    names = (field.name for field in fields(SamplingParams))
    requested = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    values = asdict(model.info.sampling) | requested
    for name, convert in _CONVERSIONS.items():
        if name in values:
            values[name] = convert(values[name])
    ends = (*_model_ends(body, model), *(body.stop_token_ids or ()))
    values["bad_words_token_ids"] = bad_words_token_ids(model.tokenizer, body.bad_words or ())
    values |= {"max_tokens": max_tokens, "logprobs": logprobs, "stop_token_ids": tuple(dict.fromkeys(ends))}
    return SamplingParams(**values)


def bad_words_token_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each word, both at a text's beginning and after a space, as vLLM does."""
    texts = (text for word in words for text in (word.lstrip(), f" {word.lstrip()}"))
    tokens = (tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts)
    return tuple(dict.fromkeys(ids for ids in tokens if ids))


def _temperature(requested: float) -> float:
    """Return the temperature as vLLM corrects it: greedy if nearly 0, otherwise at least 0.01."""
    return 0.0 if requested < _GREEDY else max(requested, _LOWEST_TEMPERATURE)


_CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "temperature": _temperature,
    "top_k": lambda top_k: max(0, top_k),
    "top_p": lambda top_p: max(top_p, LEAST_TOP_P),
    "allowed_token_ids": lambda token_ids: tuple(dict.fromkeys(token_ids)),
    "seed": lambda seed: seed % (1 << 63),
    "logit_bias": lambda biases: tuple((int(token), bias) for token, bias in biases.items()),
}
"""Conversions of a client's value of a field to the engine's value, where the two differ."""


def _check_tokens(body: GenerationBody, info: EngineInfo) -> None:
    lists: dict[str, Iterable[int]] = {
        "stop_token_ids": body.stop_token_ids or (),
        "allowed_token_ids": body.allowed_token_ids or (),
        "logit_bias": map(int, body.logit_bias or ()),
    }
    for param, ids in lists.items():
        if (wrong := next((token for token in ids if token >= info.vocab_size), None)) is not None:
            raise APIError(
                400, f"{param}: token {wrong} is outside the model's vocabulary of {info.vocab_size}", param=param
            )


def _model_ends(body: GenerationBody, model: LoadedModel) -> tuple[int, ...]:
    """Return the model's own end tokens; none if the request ignores them."""
    return () if body.ignore_eos else tuple(model.info.eos_token_ids)


def answer_length(requested: int | None, default: int | None, longest_prompt: int, info: EngineInfo, param: str) -> int:
    """Return max_tokens: the requested one, `default`, or all that the context has room for; APIError 400 if none fits.

    `param` is the request's field with the prompt.
    """
    room = info.max_model_len - longest_prompt
    max_tokens = requested if requested is not None else min(default, room) if default is not None else room
    if max_tokens > room or (room < 1 and requested != 0):
        answer = 0 if requested == 0 else max(max_tokens, 1)
        need = longest_prompt + answer
        raise beyond_context(
            info.max_model_len,
            f"; {longest_prompt} in the prompt and {answer} for the answer make {need}. Shorten the prompt or ask for "
            f"fewer tokens by {need - info.max_model_len} (or serve with a larger --max-model-len, if the model allows "
            "it)",
            param,
        )
    return max_tokens
