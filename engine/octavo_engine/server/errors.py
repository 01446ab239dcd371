"""Errors in OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`, whatever went wrong.

Under /v1/messages they have the shape of Anthropic's API: `{"type": "error", "error": {"type", "message"}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

_INVALID, _LIMITED, _SERVER = "invalid_request_error", "rate_limit_error", "server_error"
ANTHROPIC_PATH = "/v1/messages"
"""Paths that begin so belong to Anthropic's API."""
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
_INVALID_VALUE = "invalid_value"
_CODES_OF_KINDS = {
    "too_long": "array_above_max_length",
    "too_short": "array_below_min_length",
    "string_too_long": "string_above_max_length",
    "string_too_short": "string_below_min_length",
    "unsupported_parameter": "unsupported_parameter",
}
"""OpenAI's codes of pydantic's kinds of errors; those of types and of ranges are made of their names."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """The fields of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error answer, and the data of an SSE error event."""

    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """The fields of an error of Anthropic's API."""

    type: str
    message: str


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag="error"):
    """The body of an error answer of Anthropic's API, and the data of its SSE error event."""

    error: AnthropicErrorDetail
    request_id: str | None = None


class APIError(Exception):
    """Ends a request with an HTTP status, or an open stream with an error event."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = _SERVER if status >= 500 else _LIMITED if status == 429 else _INVALID
        self.detail = ErrorDetail(message, kind, param, code or (_INVALID_VALUE if status == 400 else None))
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The error as JSON."""
        return msgspec.json.encode(ErrorBody(self.detail))


def error_response(error: APIError, scope: Scope) -> Response:
    """The error as an HTTP answer, in the shape of the API to which the request's path belongs."""
    body = error.body()
    if scope["path"].startswith(ANTHROPIC_PATH):
        body = anthropic_body(error, scope.get("state", {}).get("request_id"))
    return Response(body, error.status, error.headers, media_type="application/json")


def request_id_headers(path: str) -> Sequence[str]:
    """The headers in which an answer has the request's id: that of all answers, and that of Anthropic's API."""
    return ("X-Request-Id", "Request-Id") if path.startswith(ANTHROPIC_PATH) else ("X-Request-Id",)


def anthropic_body(error: APIError, request_id: str | None = None) -> bytes:
    """The error as JSON in the shape of Anthropic's API, which names no parameter beside the message."""
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode(AnthropicErrorBody(AnthropicErrorDetail(kind, error.detail.message), request_id))


def unavailable(message: str, code: str, retry_after: int) -> APIError:
    """503: we cannot take the request now; the client may come back."""
    return APIError(503, message, code=code, headers={"Retry-After": str(retry_after)})


def shutting_down() -> APIError:
    """503 for new requests, the last event of streams that did not finish in time."""
    error = unavailable("the server is shutting down; send the request again", "server_shutting_down", 1)
    error.headers["Connection"] = "close"
    return error


def engine_dead(message: str) -> APIError:
    """The engine process stalled or died; this server ends."""
    return unavailable(f"the engine ended unexpectedly: {message}", "engine_dead", 10)


def internal_error(request_id: str) -> APIError:
    """500: a defect of ours; `request_id` is what the client sees and the log names."""
    return APIError(500, f"something went wrong here; the log says more under {request_id}", code="internal_error")


def param_of(location: Sequence[str | int]) -> str | None:
    """`messages[0].content` from a validation error's location."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path or None


def sent_location(location: Sequence[str | int], sent: Any, *, missing: bool = False) -> list[str | int]:
    """A validation error's location as the client knows it: without what pydantic calls the parts of a union.

    A name stays that `sent` has at that place, and the last one if it is `missing` there. Numbers stay.
    """
    shown: list[str | int] = []
    for place, part in enumerate(location):
        last = place == len(location) - 1
        if isinstance(part, int):
            sent = sent[part] if isinstance(sent, list) and part < len(sent) else None
        elif isinstance(sent, dict) and part in sent:
            sent = sent[part]
        elif not (missing and last):
            continue
        shown.append(part)
    return shown


def from_validation(error: ValidationError, sent: Any) -> APIError:
    """400 with the first thing that is wrong in `sent`; the input itself is not repeated."""
    first = error.errors(include_input=False, include_url=False)[0]
    kind = str(first.get("type", ""))
    location = sent_location(first.get("loc", ()), sent, missing=kind == "missing")
    if kind == "missing_member":  # of one object in the request, beside others of its kind that do not need it
        location.append(first["ctx"]["name"])
    if not location:
        return not_an_object()
    param = param_of(location)
    message = str(first.get("msg", "is not valid")).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        message = f"{param}: unknown field; leave it out"
        return APIError(400, message, param=param, code="unknown_parameter")
    null = len(location) == 1 and isinstance(sent, dict) and sent.get(str(location[0]), "") is None
    if kind in ("missing", "missing_member") or null:
        where = f" {message}" if kind == "missing_member" else ""
        return APIError(400, f"{param} is required{where}", param=param, code="missing_required_parameter")
    return APIError(400, f"{param}: {message}", param=param, code=_code_of(kind, first.get("ctx", {})))


def _code_of(kind: str, context: Mapping[str, Any]) -> str:
    """OpenAI's code of a validation error."""
    if kind.endswith("_type") or kind == "int_from_float":
        return "invalid_type"
    for begin, bounds, name in (("greater", ("ge", "gt"), "below_min"), ("less", ("le", "lt"), "above_max")):
        if kind.startswith(begin):
            bound = next((context[each] for each in bounds if each in context), 0)
            return f"{'integer' if isinstance(bound, int) else 'decimal'}_{name}_value"
    return _CODES_OF_KINDS.get(kind, _INVALID_VALUE)


def renamed(error: APIError, names: Mapping[str, str]) -> APIError:
    """The error of a translated request with the field's name in the client's own API.

    `names` maps fields of the translation, whose parts have no counterparts, to fields of the request.
    """
    param = error.detail.param or ""
    own = names.get(re.split(r"[.\[]", param)[0])
    if own is None:
        return error
    message = error.detail.message
    if message.startswith(param):
        message = own + message.removeprefix(param)
    return APIError(error.status, message, code=error.detail.code, param=own, headers=error.headers)


def not_an_object() -> APIError:
    """400 for a body of another form."""
    return APIError(400, "the body must be a JSON object, sent with Content-Type: application/json")


def from_http(error: HTTPException, request: Request) -> APIError:
    """404, 405 and the like from the router."""
    status = error.status_code
    messages = {
        404: f"there is no {request.scope['path'][:200]} here",
        405: f"{request.method[:20]} is not what {request.scope['path'][:200]} takes",
    }
    message = messages.get(status, str(error.detail))
    return APIError(status, message, code=_CODES.get(status), headers=error.headers)
