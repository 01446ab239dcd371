"""Error responses in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

For clients of Anthropic's API they have its shape: `{"type": "error", "error": {"type", "message"}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import ValidationError

_INVALID, _LIMITED, _SERVER = "invalid_request_error", "rate_limit_error", "server_error"
_ANTHROPIC_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_LONGEST_MESSAGE, _LONGEST_NAME = 2000, 100
"""Characters of a message and of a field's name in it: clients may send names of megabytes, and not read the answer."""
_INVALID_VALUE = "invalid_value"
THREADS = "thread_unsupported_request"
"""Anthropic's code for conversations that cannot be kept on the server."""
_CODES_OF_KINDS = {
    "too_long": "array_above_max_length",
    "too_short": "array_below_min_length",
    "string_too_long": "string_above_max_length",
    "string_too_short": "string_below_min_length",
    "unsupported_parameter": "unsupported_parameter",
    THREADS: THREADS,
}
"""OpenAI's error codes by pydantic's error types; `_code_of` makes the codes of wrong types and ranges."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """The fields of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of an error response, and the data of an SSE error event."""

    error: ErrorDetail


class UnsupportedThread(msgspec.Struct, frozen=True):
    """The details of an error after which the SDK sends a conversation without a `thread`."""

    error_code: str = THREADS
    unsupported: Sequence[str] = ("thread",)


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    """The fields of an error of Anthropic's API."""

    type: str
    message: str
    details: UnsupportedThread | UnsetType = UNSET


class AnthropicErrorBody(msgspec.Struct, frozen=True, tag="error"):
    """The body of an error response of Anthropic's API, and the data of its SSE error event."""

    error: AnthropicErrorDetail
    request_id: str | None = None


class APIError(Exception):
    """An error that ends a request with an HTTP status, or an open stream with an error event."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = _shortened(message, _LONGEST_MESSAGE)
        param = None if param is None else _shortened(param, _LONGEST_MESSAGE)
        super().__init__(message)
        self.status = status
        kind = _SERVER if status >= 500 else _LIMITED if status == 429 else _INVALID
        self.detail = ErrorDetail(message, kind, param, code or (_INVALID_VALUE if status == 400 else None))
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Return the error as JSON."""
        return msgspec.json.encode(ErrorBody(self.detail))


class UnfitModelError(APIError):
    """The error of a request that names a model, and asks for what the model of this server cannot do (400)."""

    def __init__(self, message: str, *, code: str | None, model: str) -> None:
        super().__init__(400, message, code=code, param="model")
        self.model = model
        """The name that the client sent. It may be that of no model here."""


def anthropic_body(error: APIError, request_id: str | None = None) -> bytes:
    """Return the error as JSON in the shape of Anthropic's API, which has no field for the parameter."""
    kind = _ANTHROPIC_KINDS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    details = UnsupportedThread() if error.detail.code == THREADS else UNSET
    return msgspec.json.encode(
        AnthropicErrorBody(AnthropicErrorDetail(kind, error.detail.message, details), request_id)
    )


def unavailable(message: str, code: str, retry_after: int) -> APIError:
    """Return an APIError 503 for a request that the client may send again in `retry_after` seconds."""
    return APIError(503, message, code=code, headers={"Retry-After": str(retry_after)})


def shutting_down() -> APIError:
    """Return an APIError 503 for new requests while draining, and for streams that did not end in time."""
    error = unavailable("the server is shutting down; send the request again", "server_shutting_down", 1)
    error.headers["Connection"] = "close"
    return error


def engine_dead(message: str) -> APIError:
    """Return an APIError 503 for requests whose engine process stalled or died; the server ends then."""
    return unavailable(f"the engine ended unexpectedly: {message}", "engine_dead", 10)


def internal_error(request_id: str) -> APIError:
    """Return an APIError 500 for a defect of the server; `request_id` is in the response and in the log."""
    message = f"the server failed because of a bug; its log has the details under {request_id}"
    return APIError(500, message, code="internal_error")


def param_of(location: Sequence[str | int]) -> str | None:
    """Return a validation error's location as a path, such as `messages[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else "." * bool(path) + _shortened(part, _LONGEST_NAME)
    return path or None


def _shortened(text: str, most: int) -> str:
    """Return the text, or its first and last characters if it has more than `most`."""
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-(most // 2) :]}"


def sent_location(location: Sequence[str | int], sent: Any, *, missing: bool = False) -> list[str | int]:
    """Return a validation error's location without pydantic's names for the members of a union.

    Numbers are kept, and names that the client's body `sent` has at that place; with `missing`, also the last name.
    An object that is one of several kinds has the name of its kind in `type`, often beside a field of the same name.
    """
    shown: list[str | int] = []
    kind = None
    for place, part in enumerate(location):
        last = place == len(location) - 1
        if kind is None and not last and isinstance(sent, dict) and part == sent.get("type"):
            kind = part
            continue
        if isinstance(part, int):
            sent = sent[part] if isinstance(sent, list) and part < len(sent) else None
        elif isinstance(sent, dict) and part in sent:
            sent = sent[part]
        elif not (missing and last):
            continue
        kind = None
        shown.append(part)
    return shown


def from_validation(error: ValidationError, sent: Any) -> APIError:
    """Return an APIError 400 for the first error in the client's body `sent`, without quoting the body."""
    first = error.errors(include_input=False, include_url=False)[0]
    kind = str(first.get("type", ""))
    location = sent_location(first.get("loc", ()), sent, missing=kind == "missing")
    location += first.get("ctx", {}).get("place", ())  # what is wrong within a value that a validator of ours checks
    if not location:
        return not_an_object()
    message = _in_json_terms(kind, str(first.get("msg", "is not valid")))
    if kind in ("union_tag_invalid", "union_tag_not_found"):  # the tag says which variant of an object it is
        location.append(first["ctx"]["discriminator"].strip("'"))
        kind = "missing_member" if kind == "union_tag_not_found" else kind
        message = "" if kind == "missing_member" else f"must be one of {first['ctx']['expected_tags']}"
    param = param_of(location)
    if kind == "extra_forbidden":
        message = f"{param}: unknown field; leave it out"
        return APIError(400, message, param=param, code="unknown_parameter")
    null = len(location) == 1 and isinstance(sent, dict) and sent.get(str(location[0]), "") is None
    if kind in ("missing", "missing_member") or null:
        where = message if kind == "missing_member" else ""
        return APIError(400, f"{param} is required {where}".rstrip(), param=param, code="missing_required_parameter")
    return APIError(400, f"{param}: {message}", param=param, code=_code_of(kind, first.get("ctx", {})))


def _in_json_terms(kind: str, message: str) -> str:
    """Return pydantic's message without words about Python: a body has objects, and no instances of classes."""
    if kind in ("dict_type", "model_type", "model_attributes_type"):
        return "Input should be an object"
    return message.removeprefix("Value error, ").replace(" after validation", "")


def _code_of(kind: str, context: Mapping[str, Any]) -> str:
    """Return OpenAI's error code for pydantic's error type `kind` and its context."""
    if kind.endswith("_type") or kind == "int_from_float":
        return "invalid_type"
    for begin, bounds, name in (("greater", ("ge", "gt"), "below_min"), ("less", ("le", "lt"), "above_max")):
        if kind.startswith(begin):
            bound = next((context[each] for each in bounds if each in context), 0)
            return f"{'integer' if isinstance(bound, int) else 'decimal'}_{name}_value"
    return _CODES_OF_KINDS.get(kind, _INVALID_VALUE)


def renamed(error: APIError, names: Mapping[str, str]) -> APIError:
    """Return the error of a translated request with the field's name in the client's own API.

    `names` maps fields of the translation to fields of the request. Parts of a field cannot be mapped: the error then
    names the whole field.
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
    """Return an APIError 400 for a body that is not a JSON object."""
    return APIError(400, "the body must be a JSON object, sent with Content-Type: application/json")


def not_json(content_type: str) -> APIError:
    """Return an APIError 400 for a body whose Content-Type is not JSON's; OpenAI has the same status and code."""
    given = repr(_shortened(content_type, _LONGEST_NAME)) if content_type else "missing"
    message = f"the body must be a JSON object, sent with Content-Type: application/json; the Content-Type is {given}"
    return APIError(400, message, code="unsupported_content_type")


def answer_too_large(most: int) -> APIError:
    """Return an APIError 400 for a request whose answer alone can take more than `most` bytes, all that a key may hold.

    It is not 429 or 503, after which clients and batches would have the same answer generated again.
    """
    message = (
        f"the answer can take more than {most} bytes, the limit for all of an API key's answers that are not complete "
        "or not read yet; lower n, max_tokens or the number of logprobs, use a stream, send fewer inputs, or ask for "
        "vectors as base64 (encoding_format)"
    )
    return APIError(400, message, code="answer_too_large")
