"""Makes the answers of /tokenize and /detokenize in a text worker, in vLLM's shapes."""

from __future__ import annotations

import msgspec

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.preparation.prompts import encode_text, render_chat
from octavo_engine.server.openai.protocol import DetokenizeBody, TokenizeBody
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.prepared import JSONAnswer


class Tokens(msgspec.Struct):
    """The tokens of a text, in vLLM's shape."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct):
    """The text of tokens, in vLLM's shape."""

    prompt: str


def tokenize(model: LoadedModel, raw: bytes) -> JSONAnswer:
    """Return the answer of /tokenize; APIError 400 if the body is not valid."""
    body = parse(TokenizeBody, raw)
    text, param, special = _text_of(model, body)
    ids = encode_text(model, text, special, param)
    texts = [model.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return JSONAnswer(encode(Tokens(len(ids), model.info.max_model_len, ids, texts)), body.model)


def _text_of(model: LoadedModel, body: TokenizeBody) -> tuple[str, str, bool]:
    """Return the text, the parameter that it comes from, and whether special tokens are added to it."""
    if (body.prompt is None) == (body.messages is None):
        raise APIError(400, "give either prompt or messages", param="prompt")
    if body.prompt is not None:
        return body.prompt, "prompt", body.add_special_tokens is not False
    return render_chat(model, body.messages or [], body), "messages", bool(body.add_special_tokens)


def detokenize(model: LoadedModel, raw: bytes) -> JSONAnswer:
    """Return the answer of /detokenize; APIError 400 if the body is not valid."""
    body = parse(DetokenizeBody, raw)
    if (wrong := next((token for token in body.tokens if token >= model.info.vocab_size), None)) is not None:
        message = f"tokens: token {wrong} is outside the model's vocabulary of {model.info.vocab_size}"
        raise APIError(400, message, param="tokens")
    text = model.tokenizer.decode(body.tokens, skip_special_tokens=False)
    return JSONAnswer(encode(Detokenized(text)), body.model)
