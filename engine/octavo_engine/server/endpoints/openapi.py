"""GET /openapi.json, for tools that read OpenAPI documents."""

from __future__ import annotations

from functools import cache
from threading import Lock

from fastapi import FastAPI
from starlette.responses import Response


def add_document(app: FastAPI) -> None:
    """Add the route of the document, which is made at its first request."""
    one_at_a_time = Lock()  # a document is made from the application's own description, which changes meanwhile

    @cache
    def document() -> bytes:
        from octavo_engine.server.endpoints.openapi_document import make_document

        return make_document(app)

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> Response:  # FastAPI runs it in a thread: in the event loop it would delay streams by 0.4 s, once
        with one_at_a_time:
            return Response(document(), media_type="application/json")
