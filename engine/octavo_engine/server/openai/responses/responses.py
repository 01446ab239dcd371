"""POST /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.answer import answer, json_answer
from octavo_engine.server.openai.responses.writer import ResponseWriter
from octavo_engine.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints, and of those that are refused in words of their own."""
    router = APIRouter()

    @router.post("/v1/responses", response_model=None)
    async def responses(request: Request) -> Response:
        return await answer(serving, request, "response", ResponseWriter)

    @router.post("/v1/responses/input_tokens", response_model=None)
    async def input_tokens(request: Request) -> Response:
        return await json_answer(serving, request, "input_tokens")

    @router.post("/v1/responses/compact", include_in_schema=False)
    async def compact() -> Response:
        message = "this server compacts no conversations: shorten the input, and send it to POST /v1/responses"
        raise APIError(404, message, code="not_found")

    @router.post("/v1/responses/{response_id}/cancel", include_in_schema=False)
    @router.get("/v1/responses/{response_id}/input_items", include_in_schema=False)
    @router.delete("/v1/responses/{response_id}", include_in_schema=False)
    @router.head("/v1/responses/{response_id}", include_in_schema=False)
    @router.get("/v1/responses/{response_id}", include_in_schema=False)
    async def stored() -> Response:
        message = "this server stores no responses: use what POST /v1/responses returned"
        raise APIError(404, message, param="response_id", code="not_found")

    return router
