"""POST /tokenize and /detokenize."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.openai.answering import prepare
from octavo_engine.server.prepared import JSONAnswer
from octavo_engine.server.serving import Serving
from octavo_engine.server.whole_answer import WholeAnswer


def routes(serving: Serving) -> APIRouter:
    """Both endpoints."""
    router = APIRouter()

    async def answer(request: Request, job: str) -> Response:
        found = await prepare(serving, request, job, serving.model().ready, JSONAnswer)
        if found is None:
            return Response(status_code=499)
        serving.check_model(found.model)
        return WholeAnswer(found.body, serving.unread)

    @router.post("/tokenize", response_model=None)
    async def tokenize(request: Request) -> Response:
        return await answer(request, "tokenize")

    @router.post("/detokenize", response_model=None)
    async def detokenize(request: Request) -> Response:
        return await answer(request, "detokenize")

    return router
