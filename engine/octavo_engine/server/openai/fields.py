"""Types of request fields: strict, and bounded without exception, so that no request can ask for unbounded work."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_TEXT = 1 << 30
"""Characters of a text field. The body's own limit, --max-request-bytes, is what counts."""
MAX_TOKENS = 1 << 24
MAX_PROMPTS = 32
MAX_N = 8
MAX_TOKEN_ID = (1 << 31) - 1

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=512)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1)]
TopLogprobs = Annotated[int, Field(ge=0, le=20)]


def _not_yet(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError("unsupported_parameter", "is not supported by this version yet; leave it away")
    return value


NotYet = Annotated[Any, AfterValidator(_not_yet)]
"""A parameter of the contract, or of OpenAI's API, that does not act yet: refused rather than ignored."""


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[list[StopString], Field(max_length=4), BeforeValidator(_listed)]
"""One stop string or up to four."""


def _prompts(value: Any) -> list[str] | list[list[int]]:
    """A prompt as text or token ids, or a list of such, always as a list."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    if all(type(item) is int for item in value):
        return [_token_ids(value)]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"holds {len(value)} prompts; at most {MAX_PROMPTS} are allowed in one request")
    if all(isinstance(item, str) for item in value):
        return value
    if all(isinstance(item, list) for item in value):
        return [_token_ids(item) for item in value]
    raise ValueError("mixes texts and token ids; all prompts must be of one kind")


def _token_ids(value: list[Any]) -> list[int]:
    if len(value) > MAX_TOKENS:
        raise ValueError(f"holds {len(value)} token ids; at most {MAX_TOKENS} are allowed")
    if not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in value):
        raise ValueError(f"token ids must be whole numbers from 0 to {MAX_TOKEN_ID}")
    return value


def _content(value: Any) -> str | None:
    """A message's text; the texts of several parts are joined by newlines."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > 1024:
        raise ValueError("must be a text or a list of at most 1024 parts")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("image_url", "input_audio", "audio_url", "video_url", "file"):
            raise PydanticCustomError("unsupported_parameter", "this model reads text only, not {kind}", {"kind": kind})
        if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
            raise ValueError(f'part {index} must be of the shape {{"type": "text", "text": "..."}}')
        texts.append(part["text"])
    return "\n".join(texts)


Prompts = Annotated[list[str] | list[list[int]], BeforeValidator(_prompts)]
Content = Annotated[str | None, BeforeValidator(_content)]


def _text_format(value: Any) -> Any:
    if isinstance(value, dict) and value.get("type") == "text":
        return None
    return _not_yet(value)


def _no_tools(value: Any) -> Any:
    return None if value in ([], "none", "auto") else _not_yet(value)


def _one(value: Any) -> Any:
    return None if value == 1 and type(value) is int else _not_yet(value)


def _zero(value: Any) -> Any:
    return None if value == 0 and type(value) is int else _not_yet(value)


def _nothing(value: Any) -> Any:
    return None if value == "" else _not_yet(value)


TextFormat = Annotated[Any, AfterValidator(_text_format)]
NoTools = Annotated[Any, AfterValidator(_no_tools)]
OnlyOne = Annotated[Any, AfterValidator(_one)]
OnlyZero = Annotated[Any, AfterValidator(_zero)]
OnlyEmpty = Annotated[Any, AfterValidator(_nothing)]
