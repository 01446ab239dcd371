"""The document of /openapi.json: the routes of the API with the bodies that they take.

`openapi` imports this module when the document is first asked for: the HTTP process needs the classes of bodies for
nothing else, and making them takes a quarter of the CPU time of its start.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from octavo_engine.server.anthropic.protocol import MessagesBody, PromptBody
from octavo_engine.server.endpoints.adapters import LoadBody, UnloadBody
from octavo_engine.server.openai.batches.protocol import BatchBody
from octavo_engine.server.openai.bodies.body import Body
from octavo_engine.server.openai.protocol import (
    ChatCompletionBody,
    CompletionBody,
    DetokenizeBody,
    TokenizeBody,
)
from octavo_engine.server.openai.responses.protocol import ResponsesBody
from octavo_engine.server.pooling.protocol import ClassifyBody, EmbeddingBody, RerankBody, ScoreBody

BODIES: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatCompletionBody,
    "/v1/completions": CompletionBody,
    **dict.fromkeys(("/v1/responses", "/v1/responses/input_tokens"), ResponsesBody),
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": PromptBody,
    "/v1/embeddings": EmbeddingBody,
    "/pooling": EmbeddingBody,
    **dict.fromkeys(("/v1/score", "/score"), ScoreBody),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), RerankBody),
    **dict.fromkeys(("/v1/classify", "/classify"), ClassifyBody),
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/v1/batches": BatchBody,
    "/v1/load_lora_adapter": LoadBody,
    "/v1/unload_lora_adapter": UnloadBody,
}
"""The body of each path's POST. A text worker reads bodies, so their classes are not in the routes' signatures."""


def make_document(app: FastAPI) -> bytes:
    """Return the document: the routes as FastAPI describes them, with their bodies."""
    found = app.openapi()
    bodies = {path: body for path, body in BODIES.items() if path in found["paths"]}  # batches may be off
    models = list(dict.fromkeys(bodies.values()))
    references, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    found.setdefault("components", {})["schemas"] = definitions["$defs"]
    for operations in found["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI's own answer to bad input, which is 400 here
    for path, model in bodies.items():
        content = {"application/json": {"schema": references[model, "validation"]}}
        found["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
    return msgspec.json.encode(found)
