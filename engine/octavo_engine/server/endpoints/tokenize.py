"""The endpoints POST /tokenize and /detokenize."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from octavo_engine.server.generation.answer import json_answer
from octavo_engine.server.serving import Serving


def routes(serving: Serving) -> APIRouter:
    """Return the routes of both endpoints."""
    router = APIRouter()

    @router.post("/tokenize", response_model=None)
    async def tokenize(request: Request) -> Response:
        return await json_answer(serving, request, "tokenize")

    @router.post("/detokenize", response_model=None)
    async def detokenize(request: Request) -> Response:
        return await json_answer(serving, request, "detokenize")

    return router
