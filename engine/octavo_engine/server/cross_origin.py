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
"""Headers of answers that scripts may read, besides those that they always may."""


def with_cross_origin(app: ASGIApp, config: ServerConfig) -> ASGIApp:
    """The application, whose answers say to browsers which origins may read them.

    It wraps all other middleware: a browser asks for permission (OPTIONS) without an API key, and shows an error
    of any kind to a page only if it says the same.
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
