"""Prepares requests of /v1/completions in a text worker: from the body to token ids and checked parameters."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation.prepare_generation import (
    EndpointFields,
    answer_length,
    check_sequences,
    prepared_request,
)
from octavo_engine.server.openai.preparation.prompts import check_prompt, encode_prompt, truncated_length
from octavo_engine.server.openai.protocol import CompletionBody
from octavo_engine.server.openai.structured_outputs.fields import grammar_of
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest
from octavo_engine.text.tokenizer import Tokenizer

_DEFAULT_MAX_TOKENS = 16
_MOST_ECHOED = 2 << 20
"""The most characters of prompts that several answers of one request may repeat. A token may have 80 characters, so
that 128 answers with a context of 8,192 tokens would repeat 80 MB."""


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    body = parse(CompletionBody, raw)
    check_sequences(body, len(body.prompt), body.logprobs)
    prompts = _encode_prompts(model, body)
    longest = max(map(len, prompts))
    own = EndpointFields(
        prompts=prompts,
        max_tokens=answer_length(body.max_tokens, _DEFAULT_MAX_TOKENS, longest, model.info, "prompt"),
        logprobs=body.logprobs,
        echoes=_echoes(body, model.tokenizer, prompts),
        grammar=grammar_of(body, model),
        scores_echo=bool(body.echo) and body.logprobs is not None,
    )
    return prepared_request(body, model, own)


def _encode_prompts(model: LoadedModel, body: CompletionBody) -> list[list[int]]:
    keep = truncated_length(body, _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens, model.info)
    special = body.add_special_tokens is not False
    prompts = []
    for prompt in body.prompt:
        if isinstance(prompt, str):
            ids = encode_prompt(model, prompt, special, "prompt", keep, continued=True)
        else:
            ids = prompt if keep is None else prompt[-keep:]
        prompts.append(check_prompt(ids, model.info, "prompt"))
    return prompts


def _echoes(body: CompletionBody, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]]) -> list[str]:
    """Return the text that each prompt's answers begin with: what was kept of the prompt if `echo`, else "".

    Special tokens among token ids are a part of the text, as they are where a client writes them in a text.
    """
    if not body.echo:
        return [""] * len(prompts)
    is_complete = body.truncate_prompt_tokens is None
    echoes = [
        text if isinstance(text, str) and is_complete else tokenizer.decode(ids, skip_special_tokens=False)
        for text, ids in zip(body.prompt, prompts, strict=True)
    ]
    answers = len(echoes) * (body.n or 1)
    if answers > 1 and (size := sum(map(len, echoes)) * (body.n or 1)) > _MOST_ECHOED:
        message = (
            f"echo: {len(echoes)} prompts with n {body.n or 1} are {size} characters to repeat, more than "
            f"{_MOST_ECHOED} in one request; leave echo out, or ask for fewer choices"
        )
        raise APIError(400, message, param="echo")
    return echoes
