"""Prepares requests of /v1/responses in a text worker: from the body to token ids and checked parameters."""

from __future__ import annotations

import msgspec

from octavo_engine.server.errors import APIError, renamed
from octavo_engine.server.openai import prepare_chat
from octavo_engine.server.openai.body import parse
from octavo_engine.server.openai.responses.protocol import ResponsesBody
from octavo_engine.server.openai.responses.translation import chat_body, repeated_fields
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import PreparedRequest

_NAMES = {"messages": "input", "response_format": "text.format"}
"""The names of fields of a chat completion in this API, for error messages."""


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    body = parse(ResponsesBody, raw)
    try:
        prepared = prepare_chat.prepare_body(model, chat_body(body))
    except APIError as error:
        raise renamed(error, _NAMES) from None
    return msgspec.structs.replace(prepared, repeated=repeated_fields(body, prepared))
