"""Prepares requests of /v1/messages, and the answers of /v1/messages/count_tokens, in a text worker."""

from __future__ import annotations

import msgspec

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats import FORMATS
from octavo_engine.server.anthropic.protocol import MessagesBody, PromptBody, TextBlock
from octavo_engine.server.anthropic.translation import chat_body
from octavo_engine.server.errors import APIError, renamed
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation import prepare_chat
from octavo_engine.server.openai.preparation.prompts import encode_text, render_chat
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer, PreparedRequest

_NAMES = {"response_format": "output_config.format"}
"""The names of fields of a chat completion in this API, for error messages."""


class TokenCount(msgspec.Struct):
    """The number of a prompt's tokens."""

    input_tokens: int


def prepare(model: LoadedModel, raw: bytes) -> PreparedRequest:
    """Return the prepared request of a body; APIError 400 if it is not valid."""
    body = parse(MessagesBody, raw)
    _check(body)
    try:
        prepared = prepare_chat.prepare_body(model, chat_body(body))
    except APIError as error:
        raise renamed(error, _NAMES) from None
    if body.thinking is not None and body.thinking.type == "enabled" and not _reasons(prepared.form):
        message = "thinking: answers of this model have no reasoning apart from their text; leave thinking out"
        raise APIError(400, message, param="thinking", code="unsupported_parameter")
    return prepared


def count_tokens(model: LoadedModel, raw: bytes) -> JSONAnswer:
    """Return the answer of /v1/messages/count_tokens; APIError 400 if the body is not valid."""
    body = parse(PromptBody, raw)
    _check_contents(body)
    chat = chat_body(body)
    ids = encode_text(model, render_chat(model, chat.messages, chat), False, "messages")
    return JSONAnswer(encode(TokenCount(len(ids))), body.model)


def _check(body: MessagesBody) -> None:
    """Raise APIError 400 for fields that contradict each other."""
    _check_contents(body)
    budget = body.thinking.budget_tokens if body.thinking is not None else None
    if budget is not None and budget >= body.max_tokens:
        message = f"thinking.budget_tokens: {budget} must be less than max_tokens, {body.max_tokens}"
        raise APIError(400, message, param="thinking.budget_tokens")
    if body.stop is not None and body.stop_sequences is not None:
        raise APIError(400, "stop: means the same as stop_sequences; give one of them", param="stop")


def _check_contents(body: PromptBody) -> None:
    """Raise APIError 400 for a message without text or other content, as Anthropic's API does.

    Only the last message may be empty, and only if it is the assistant's.
    """
    for place, turn in enumerate(body.messages):
        param = f"messages[{place}].content"
        begins_answer = turn.role == "assistant" and turn is body.messages[-1]
        if not turn.content and not begins_answer:
            raise APIError(400, f"{param}: must not be empty", param=param)
        if any(isinstance(block, TextBlock) and not block.text.strip() for block in turn.content):
            raise APIError(400, f"{param}: a text must be more than spaces; leave it out", param=param)


def _reasons(form: AnswerForm) -> bool:
    return form.reasons or (form.format is not None and form.format in FORMATS and FORMATS[form.format].reasons)
