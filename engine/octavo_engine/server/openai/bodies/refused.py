"""Types of fields that other servers support and this one does not: a value that asks for anything is refused.

A field that would change the answer is never ignored, since the client would not notice that it had no effect.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError


def _refuse(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "is not supported by this version yet; leave it out")
    return value


def _only_false(value: Any) -> Any:
    return None if value is False else _refuse(value)


def _only(*harmless: str | float) -> AfterValidator:
    """Return a validator that accepts these values alone, which have no effect here."""
    return AfterValidator(lambda value: None if value in harmless and not isinstance(value, bool) else _refuse(value))


def _only_empty(value: Any) -> Any:
    return None if value in ("", [], {}) else _refuse(value)


def _no_functions(value: Any) -> Any:
    return None if value in ([], "none", "auto") else _refuse(value)


def _text_modality(value: Any) -> Any:
    return None if value == ["text"] else _refuse(value)


def _refuse_here(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "belongs to another endpoint; leave it out")
    return value


NotYet = Annotated[Any, AfterValidator(_refuse)]
"""A field without a value that asks for nothing."""
NotHere = Annotated[Any, AfterValidator(_refuse_here)]
"""A field that another endpoint of this server has, and that would have no effect here."""
OnlyFalse = Annotated[Any, AfterValidator(_only_false)]
OnlyOne = Annotated[Any, _only(1)]
OnlyZero = Annotated[Any, _only(0)]
OnlyUnlimited = Annotated[Any, _only(-1)]
OnlyLeft = Annotated[Any, _only("left")]
OnlyRight = Annotated[Any, _only("right")]
OnlyFloat = Annotated[Any, _only("float")]
OnlyEmbed = Annotated[Any, _only("embed")]
OnlyEmpty = Annotated[Any, AfterValidator(_only_empty)]
NoFunctions = Annotated[Any, AfterValidator(_no_functions)]
"""A deprecated field about functions: an empty list, or a choice that asks for nothing where there are none."""
TextModality = Annotated[Any, AfterValidator(_text_modality)]
