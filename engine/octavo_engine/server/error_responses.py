"""Errors as HTTP responses. Text workers know errors too, and need neither Starlette nor asyncio, which it imports."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from octavo_engine.server.errors import APIError, anthropic_body

ANTHROPIC_PATH = "/v1/messages"
"""The beginning of the paths of Anthropic's API."""
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def error_response(error: APIError, scope: Scope) -> Response:
    """Return the error as an HTTP response, in the shape of the client's API."""
    body = error.body()
    if for_anthropic(scope):
        body = anthropic_body(error, scope.get("state", {}).get("request_id"))
    return Response(body, error.status, error.headers, media_type="application/json")


def for_anthropic(scope: Scope) -> bool:
    """Return True for requests of Anthropic's API: those of its paths, and those with the header that its SDKs send."""
    return scope["path"].startswith(ANTHROPIC_PATH) or any(name == b"anthropic-version" for name, _ in scope["headers"])


def request_id_headers(scope: Scope) -> Sequence[str]:
    """Return the names of the response headers for the request's id, one of which only Anthropic's API has."""
    return ("X-Request-Id", "Request-Id") if for_anthropic(scope) else ("X-Request-Id",)


def from_http(error: HTTPException, request: Request) -> APIError:
    """Return an error of the router, such as 404 or 405, as an APIError."""
    status = error.status_code
    messages = {
        404: f"there is no {request.scope['path'][:200]} here",
        405: f"{request.method[:20]} is not allowed for {request.scope['path'][:200]}",
    }
    message = messages.get(status, str(error.detail))
    return APIError(status, message, code=_CODES.get(status), headers=error.headers)
