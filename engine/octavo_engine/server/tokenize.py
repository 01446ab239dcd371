"""POST /tokenize and /detokenize: what the model makes of a text, in vLLM's shapes."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.answers import encode
from octavo_engine.server.openai.prompts import encode_text, render_chat
from octavo_engine.server.openai.protocol import DetokenizeBody, TokenizeBody
from octavo_engine.server.serving import LoadedModel, Serving


class Tokens(msgspec.Struct):
    """A text's tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct):
    """The text of tokens."""

    prompt: str


async def _text_of(serving: Serving, model: LoadedModel, body: TokenizeBody) -> tuple[str, str, bool]:
    """The text, the parameter it comes from, and whether special tokens are added to it."""
    if (body.prompt is None) == (body.messages is None):
        raise APIError(400, "give either prompt or messages", param="prompt")
    if body.prompt is not None:
        return body.prompt, "prompt", body.add_special_tokens is not False
    text = await render_chat(serving, model, body.messages or [], body)
    return text, "messages", bool(body.add_special_tokens)


def routes(serving: Serving) -> APIRouter:
    """Both endpoints."""
    router = APIRouter()

    @router.post("/tokenize", response_model=None)
    async def tokenize(body: TokenizeBody) -> Response:
        model = serving.model()
        serving.check_model(body.model)
        text, param, special = await _text_of(serving, model, body)
        ids = await encode_text(serving, model, text, special, param)
        texts = [model.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
        return Response(encode(Tokens(len(ids), model.ready.max_model_len, ids, texts)), media_type="application/json")

    @router.post("/detokenize", response_model=None)
    async def detokenize(body: DetokenizeBody) -> Response:
        model = serving.model()
        serving.check_model(body.model)
        if (wrong := next((token for token in body.tokens if token >= model.ready.vocab_size), None)) is not None:
            message = f"tokens: token {wrong} is none of the model's {model.ready.vocab_size}"
            raise APIError(400, message, param="tokens")
        text = await serving.text.run(model.tokenizer.decode, body.tokens, skip_special_tokens=False)
        return Response(encode(Detokenized(text)), media_type="application/json")

    return router
