"""Prepares requests of /v1/responses, and the answers of /v1/responses/input_tokens, in a text worker."""

from __future__ import annotations

import msgspec

from octavo_engine.server.errors import APIError, renamed
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation import prepare_chat
from octavo_engine.server.openai.preparation.prompts import encode_text, render_chat
from octavo_engine.server.openai.responses.protocol import ResponsesBody
from octavo_engine.server.openai.responses.translation import chat_body, repeated_fields
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer, PreparedRequest

_NAMES = {"messages": "input", "response_format": "text.format"}
"""The names of fields of a chat completion in this API, for error messages."""


class InputTokens(msgspec.Struct):
    """The number of an input's tokens, with instructions and tools."""

    input_tokens: int
    object: str = "response.input_tokens"


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    body = parse(ResponsesBody, raw)
    try:
        prepared = prepare_chat.prepare_body(model, chat_body(body))
    except APIError as error:
        raise renamed(error, _NAMES) from None
    return msgspec.structs.replace(prepared, repeated=repeated_fields(body, prepared))


def input_tokens(model: LoadedModel, raw: bytes) -> JSONAnswer:
    """Return the answer of /v1/responses/input_tokens; APIError 400 if the body is not valid."""
    body = parse(ResponsesBody, raw)
    try:
        chat = chat_body(body)
        ids = encode_text(model, render_chat(model, chat.messages, chat), False, "messages")
    except APIError as error:
        raise renamed(error, _NAMES) from None
    return JSONAnswer(encode(InputTokens(len(ids))), body.model)
