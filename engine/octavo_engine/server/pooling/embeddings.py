"""POST /v1/embeddings, in OpenAI's shape, and /pooling, in vLLM's: they return the vectors of texts."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.engine.pooled_vectors import to_bytes, to_vector
from octavo_engine.server.generation.answer import answer_in_full
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.preparation.prepared import PooledOptions, PreparedRequest
from octavo_engine.server.serving import Serving


class PooledUsage(msgspec.Struct):
    """The number of tokens that were read, under both of the API's names."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingObject(msgspec.Struct, kw_only=True):
    """The vector of one input, as numbers or as the base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class PoolingObject(msgspec.Struct, kw_only=True):
    """The vector of one input in the shape of /pooling."""

    object: Literal["pooling"] = "pooling"
    index: int
    data: list[float] | str


class Vectors(msgspec.Struct, kw_only=True):
    """The vectors of all inputs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: Sequence[EmbeddingObject | PoolingObject]
    usage: PooledUsage


class EmbeddingWriter:
    """Writes the answers of /v1/embeddings."""

    def __init__(self, name: str, prepared: PreparedRequest) -> None:
        self._model = prepared.model or name
        self._options = prepared.pooled or PooledOptions()

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        return encode(
            Vectors(
                id=f"embd-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._model,
                data=[self._entry(output.index, self._vector(output)) for output in answers],
                usage=PooledUsage(usage.prompt_tokens, usage.prompt_tokens),
            )
        )

    def _entry(self, index: int, vector: list[float] | str) -> EmbeddingObject | PoolingObject:
        return EmbeddingObject(index=index, embedding=vector)

    def _vector(self, output: SequenceOutput) -> list[float] | str:
        vector = to_vector(output.pooled, self._options.dimensions, normalize=self._options.normalize)
        return base64.b64encode(to_bytes(vector)).decode() if self._options.base64 else vector.tolist()


class PoolingWriter(EmbeddingWriter):
    """Writes the answers of /pooling."""

    def _entry(self, index: int, vector: list[float] | str) -> EmbeddingObject | PoolingObject:
        return PoolingObject(index=index, data=vector)


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints."""
    router = APIRouter()

    @router.post("/v1/embeddings", response_model=None)
    async def embeddings(request: Request) -> Response:
        return await answer_in_full(serving, request, "embedding", EmbeddingWriter)

    @router.post("/pooling", response_model=None)
    async def pooling(request: Request) -> Response:
        return await answer_in_full(serving, request, "embedding", PoolingWriter)

    return router
