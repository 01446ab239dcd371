"""POST /v1/score, in vLLM's shape, and /v1/rerank, in Jina's: they return how well pairs of texts match.

A score is given by a model that classifies pairs, or is the cosine of the texts' embeddings.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.engine.pooled_vectors import probabilities, similarity, to_vector
from octavo_engine.server.generation.answer import answer_in_full
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import Usage
from octavo_engine.server.openai.answers.objects import encode
from octavo_engine.server.pooling.embeddings import PooledUsage
from octavo_engine.server.preparation.prepared import PooledOptions, PreparedRequest
from octavo_engine.server.serving import Serving


class Score(msgspec.Struct, kw_only=True):
    """The score of one pair."""

    object: Literal["score"] = "score"
    index: int
    score: float


class Scores(msgspec.Struct, kw_only=True):
    """The scores of all pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage


class Document(msgspec.Struct):
    """A document's text."""

    text: str


class RerankResult(msgspec.Struct, kw_only=True):
    """The score of one document, which has this index in the request."""

    index: int
    document: Document | UnsetType = UNSET
    relevance_score: float


class Reranked(msgspec.Struct, kw_only=True):
    """The scores of the documents, the best first."""

    id: str
    model: str
    usage: PooledUsage
    results: list[RerankResult]


class ScoreWriter:
    """Writes the answers of /v1/score."""

    def __init__(self, name: str, prepared: PreparedRequest) -> None:
        self._model = prepared.model or name
        self._options = prepared.pooled or PooledOptions()

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        scores = [Score(index=index, score=score) for index, score in enumerate(_scores(answers, self._options))]
        return encode(
            Scores(
                id=f"score-{uuid.uuid4().hex}",
                created=int(time.time()),
                model=self._model,
                data=scores,
                usage=PooledUsage(usage.prompt_tokens, usage.prompt_tokens),
            )
        )


class RerankWriter:
    """Writes the answers of /v1/rerank."""

    def __init__(self, name: str, prepared: PreparedRequest) -> None:
        self._model = prepared.model or name
        self._options = prepared.pooled or PooledOptions()

    def full(self, answers: Sequence[SequenceOutput], usage: Usage) -> bytes:
        """Return the complete answer."""
        scores = _scores(answers, self._options)
        best = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: self._options.top_n]
        return encode(
            Reranked(
                id=f"rerank-{uuid.uuid4().hex}",
                model=self._model,
                usage=PooledUsage(usage.prompt_tokens, usage.prompt_tokens),
                results=[self._result(index, scores[index]) for index in best],
            )
        )

    def _result(self, index: int, score: float) -> RerankResult:
        documents = self._options.documents
        document = Document(documents[index]) if documents else UNSET
        return RerankResult(index=index, document=document, relevance_score=score)


def _scores(answers: Sequence[SequenceOutput], options: PooledOptions) -> list[float]:
    """Return the score of each pair: of each document with the only query, or with the query of the same index."""
    if options.activation:
        return [float(probabilities(output.pooled, options.activation)[0]) for output in answers]
    vectors = [to_vector(output.pooled, normalize=True) for output in answers]
    queries, documents = vectors[: options.queries], vectors[options.queries :]
    if len(queries) == 1:
        queries = queries * len(documents)
    return [similarity(query, document) for query, document in zip(queries, documents, strict=True)]


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints, under all of their paths."""
    router = APIRouter()

    async def score(request: Request) -> Response:
        return await answer_in_full(serving, request, "score", ScoreWriter)

    async def rerank(request: Request) -> Response:
        return await answer_in_full(serving, request, "rerank", RerankWriter)

    for path in ("/v1/score", "/score"):
        router.add_api_route(path, score, methods=["POST"], response_model=None)
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        router.add_api_route(path, rerank, methods=["POST"], response_model=None)
    return router
