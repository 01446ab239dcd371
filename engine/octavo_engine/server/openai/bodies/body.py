"""The base classes of request bodies, and how a body is parsed and checked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from octavo_engine.server.errors import APIError, from_validation, param_of
from octavo_engine.server.openai.bodies.unknown_fields import check_names


class Body(BaseModel):
    """A request body, or an object in one. Each value must have the field's type: no value is converted."""

    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class StrictBody(Body):
    """A body in which an unknown field is an error, unless it is `null`, which means absent."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return {key: each for key, each in value.items() if each is not None} if isinstance(value, dict) else value


AnyBody = TypeVar("AnyBody", bound=Body)

_MAY_BE_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Half or whole characters beyond U+FFFF, as JSON escapes them, or the bytes of a surrogate."""


def parse(kind: type[AnyBody], raw: bytes) -> AnyBody:
    """Return the checked body; APIError 400, which names the first error, if it is not valid."""
    try:
        text = raw.decode("utf-8-sig", "surrogatepass")  # json itself would also read UTF-16 and UTF-32
        fields = json.loads(text, parse_constant=_refuse)
        if _MAY_BE_SURROGATES.search(raw) and (place := _surrogate(fields, ())) is not None:
            param = param_of(place)
            raise APIError(400, f"{param or 'the body'}: contains an unpaired surrogate", param=param)
        check_names(kind, fields)
        return checked(kind, fields)
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


def _refuse(constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not a number in JSON", constant, 0)


def _surrogate(value: Any, place: tuple[str | int, ...]) -> tuple[str | int, ...] | None:
    """Return the place of the first text that is not valid Unicode; for a field's name, the place of its object.

    No field may hold such a text. It cannot be part of an error's message, and validation errors about it mislead.
    """
    if isinstance(value, str):
        return None if _is_unicode(value) else place
    if isinstance(value, dict):
        if not all(map(_is_unicode, value)):
            return place
        parts: Iterable[tuple[str | int, Any]] = value.items()
    else:
        parts = enumerate(value) if isinstance(value, list) else ()
    found = (_surrogate(each, (*place, name)) for name, each in parts)
    return next((each for each in found if each is not None), None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
