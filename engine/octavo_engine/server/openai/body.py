"""Parses and checks the JSON body of a request, which becomes an object of a subclass of `Body`."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import ValidationError

from octavo_engine.server.errors import APIError, from_validation
from octavo_engine.server.openai.protocol import Body

AnyBody = TypeVar("AnyBody", bound=Body)


def parse(kind: type[AnyBody], raw: bytes) -> AnyBody:
    """Return the checked body; APIError 400, which names the first error, if it is not valid."""
    try:
        return checked(kind, json.loads(raw))
    except json.JSONDecodeError as error:
        raise APIError(400, f"the body is not valid JSON: {error.msg}", code="invalid_json") from None
    except (ValueError, RecursionError):
        message = "the body cannot be read as JSON: it must be UTF-8, not deeply nested, and without very long numbers"
        raise APIError(400, message, code="invalid_json") from None


def checked(kind: type[AnyBody], fields: Any) -> AnyBody:
    """Return a checked body with these fields, such as the translation of another API's request; APIError 400."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise from_validation(error, fields) from None
