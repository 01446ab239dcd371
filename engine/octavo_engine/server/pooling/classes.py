"""POST /classify, in vLLM's shape: it returns how likely each class is for each text."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.engine.pooled_vectors import probabilities
from octavo_engine.server.generation.answer import answer_in_full
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.pooling.embeddings import PooledUsage
from octavo_engine.server.preparation.prepared import PooledOptions, PreparedRequest
from octavo_engine.server.serving import Serving


class Classified(msgspec.Struct, kw_only=True):
    """The likeliest class of one text, and the probabilities of all classes."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(msgspec.Struct, kw_only=True):
    """The classes of all texts of a request."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classified]
    usage: PooledUsage


class ClassWriter:
    """Writes the answers of /classify."""

    def __init__(self, name: str, prepared: PreparedRequest) -> None:
        self._model = prepared.model or name
        self._options = prepared.pooled or PooledOptions()

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        return encode(
            Classes(
                id=f"classify-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._model,
                data=[self._classified(output) for output in answers],
                usage=PooledUsage(usage.prompt_tokens, usage.prompt_tokens),
            )
        )

    def _classified(self, output: SequenceOutput) -> Classified:
        probs = probabilities(output.pooled, self._options.activation)
        label = self._options.labels[int(probs.argmax())]
        return Classified(index=output.index, label=label, probs=probs.tolist(), num_classes=len(probs))


def routes(serving: Serving) -> APIRouter:
    """Return the routes of the endpoint: at vLLM's path, and below /v1."""
    router = APIRouter()

    async def classify(request: Request) -> Response:
        return await answer_in_full(serving, request, "classify", ClassWriter)

    for path in ("/classify", "/v1/classify"):
        router.add_api_route(path, classify, methods=["POST"], response_model=None)
    return router
