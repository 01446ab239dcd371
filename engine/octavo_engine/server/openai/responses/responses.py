"""POST /v1/responses."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.openai.answering import answer
from octavo_engine.server.openai.responses.writer import ResponseWriter
from octavo_engine.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """Return the route of the endpoint."""
    router = APIRouter()

    @router.post("/v1/responses", response_model=None)
    async def responses(request: Request) -> Response:
        return await answer(serving, request, "response", ResponseWriter)

    return router
