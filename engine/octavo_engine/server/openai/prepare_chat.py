"""Prepares /v1/chat/completions, in a text worker: from the body to token ids and checked parameters."""

from __future__ import annotations

from octavo_engine.server.errors import APIError
from octavo_engine.server.loaded_model import LoadedModel
from octavo_engine.server.openai.body import parse
from octavo_engine.server.openai.preparation import answer_length, prepared_request
from octavo_engine.server.openai.prompts import check_prompt, encode_text, render_chat, truncated_length
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.prepared import PreparedRequest


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """What is asked for; APIError 400."""
    body = parse(ChatCompletionBody, raw)
    logprobs = top_logprobs(body)
    text = render_chat(model, body.messages, body)
    asked = body.max_completion_tokens or body.max_tokens
    keep = truncated_length(body, asked or 1, model.ready)
    ids = encode_text(model, text, bool(body.add_special_tokens), "messages", keep)
    prompt = check_prompt(ids, model.ready, "messages")
    max_tokens = answer_length(asked, None, len(prompt), model.ready)
    return prepared_request(body, model, [prompt], max_tokens, logprobs)


def top_logprobs(body: ChatCompletionBody) -> int | None:
    """How many likeliest tokens to report at each position; None for no log probabilities at all."""
    if body.top_logprobs and not body.logprobs:
        raise APIError(400, "top_logprobs: only allowed when logprobs is true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
