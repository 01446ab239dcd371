"""CORS: pages of other origins may not use the API from a browser, unless --allowed-origins names them."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from octavo_engine.config import ServerConfig

_SHOWN_HEADERS = (
    "X-Request-Id",
    "Request-Id",
    "Retry-After",
    "X-Should-Retry",
    "OpenAI-Processing-Ms",
    "traceparent",
    *(f"X-RateLimit-{fact}-{what}" for fact in ("Limit", "Remaining", "Reset") for what in ("Requests", "Tokens")),
)
"""Response headers that scripts of other origins may read, besides those that they always may."""


def with_cross_origin(app: ASGIApp, config: ServerConfig) -> ASGIApp:
    """Return the application with CORS headers, which tell browsers the origins that may read its answers.

    The headers are added around all other middleware: a browser asks for permission (OPTIONS) without an API key, and
    lets a page read an error response only if it has these headers, too.
    """
    if not config.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=config.allowed_origins,
        allow_methods=config.allowed_methods,
        allow_headers=config.allowed_headers,
        allow_credentials=config.allow_credentials,
        expose_headers=_SHOWN_HEADERS,
    )
