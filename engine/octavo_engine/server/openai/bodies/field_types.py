"""Types of request fields. All are strict and have bounds, so that no request can ask for unbounded work."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from octavo_engine.server.preparation.prepared import MAX_TIMEOUT, MIN_TIMEOUT
from octavo_engine.structured.grammar import MAX_CHARACTERS

MAX_TEXT = 16 << 20
"""The most characters of one text. All messages or prompts together are limited by --max-request-bytes."""
MAX_TOKENS = 1 << 24
MAX_SEQUENCES = 256
"""The most sequences (prompts × n) of one request. All of them are prepared and held in memory together."""
MAX_PROMPTS = MAX_SEQUENCES
MAX_INPUTS = 2048
"""The most texts to be embedded or compared in one request."""
MAX_N = 128
"""The largest n, as in OpenAI's API. A prompt is computed once for all of its choices."""
MAX_TOKEN_ID = (1 << 31) - 1


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _all_whole(value: Any) -> Any:
    return list(map(_whole, value)) if isinstance(value, list) and float in map(type, value) else value


WHOLE = BeforeValidator(_whole)
"""Lets JSON write a whole number as 5.0, which is an integer for JSON Schema, and which vLLM takes too."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(min_length=1, max_length=512)]
Label = Annotated[str, Field(max_length=4096)]
"""A name that the client chooses, and that has no meaning for this server."""
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
WHOLE_IDS = BeforeValidator(_all_whole)
"""Does what WHOLE does for a list of TokenId, but at once: it may be very long."""
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]
"""Logits are divided by the penalty: with a much smaller one they would not be finite."""
Timeout = Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=-1000, le=1000), WHOLE]
Seed = Annotated[int, Field(ge=-(1 << 63), le=(1 << 63) - 1), WHOLE]
TopLogprobs = Annotated[int, Field(ge=0, le=20), WHOLE]
LogitBias = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})$")],
        Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)],
    ],
    Field(max_length=300),
]
"""The bias of each token. Ids have no leading zeros: the biases of 5 and 05 would be added for one token."""
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
ToolDescription = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("must be a number of tokens, or -1 for as many as there is room for")
    return value


PromptTruncation = Annotated[int, Field(ge=-1, le=MAX_TOKENS), WHOLE, AfterValidator(_not_zero)]


_MAX_DEPTH = 4
_MAX_VALUES = 256
_MAX_VALUES_TEXT = 16_384


def _template_values(value: Any) -> Any:
    """Check the variables of a chat template: a few small JSON values, none of them named after tools or functions."""
    if not isinstance(value, dict):
        raise ValueError("must be an object")
    for name in value:
        if re.search("tool|function", name, re.IGNORECASE):
            raise PydanticCustomError(
                "unsupported_parameter",
                "{name}: is not taken as a variable of the chat template; give tools in the field tools",
                {"name": repr(name[:100])},
            )
    count, characters = _measure(value, _MAX_DEPTH)
    if count > _MAX_VALUES or characters > _MAX_VALUES_TEXT:
        raise ValueError(
            f"holds {count} values with {characters} characters; allowed are {_MAX_VALUES} with {_MAX_VALUES_TEXT}"
        )
    return value


def _measure(value: Any, depth: int) -> tuple[int, int]:
    """Return the number of values in `value`, itself included, and of the characters in its texts."""
    if isinstance(value, str):
        return 1, len(value)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return 1, 0
    if not isinstance(value, dict | list):
        raise ValueError("holds a whole number that is too large")
    if depth == 0:
        raise ValueError(f"is nested more than {_MAX_DEPTH} deep")
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    measures = [_measure(part, depth - 1) for part in parts]
    return 1 + sum(count for count, _ in measures), sum(characters for _, characters in measures)


TemplateValues = Annotated[dict[str, Any], BeforeValidator(_template_values)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopString = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[list[StopString], Field(max_length=4), BeforeValidator(_listed)]
"""One stop string as a text, or a list of up to four."""


BadWords = Annotated[list[StopString], Field(max_length=64)]
"""Texts that an answer must not contain."""


def _prompts(value: Any, most: int = MAX_PROMPTS) -> list[str] | list[list[int]]:
    """Return a prompt, which is a text or a list of token ids, or several of one kind, as a list of prompts."""
    if isinstance(value, str):
        return [_text(value)]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, a list of texts, a list of token ids, or a list of such lists")
    value = _all_whole(value)
    if all(type(item) is int for item in value):
        return [_token_ids(value)]
    if len(value) > most:
        message = "holds {count} prompts; at most {most} are allowed in one request"
        raise PydanticCustomError("too_long", message, {"count": len(value), "most": most})
    if all(isinstance(item, str) for item in value):
        return [_text(item) for item in value]
    if all(isinstance(item, list) for item in value):
        return [_token_ids(item) for item in value]
    raise ValueError("mixes texts and token ids, or a token id is not a whole number; all prompts must be of one kind")


def _text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise ValueError(f"has {len(value)} characters; at most {MAX_TEXT} are allowed in one text")
    return value


def _token_ids(value: list[Any]) -> list[int]:
    if len(value) > MAX_TOKENS:
        raise ValueError(f"holds {len(value)} token ids; at most {MAX_TOKENS} are allowed")
    value = _all_whole(value)
    if not all(type(item) is int and 0 <= item <= MAX_TOKEN_ID for item in value):
        raise ValueError(f"token ids must be whole numbers from 0 to {MAX_TOKEN_ID}")
    return value


_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The field with the text of a part, by the part's type."""
_UNREADABLE = ("image_url", "input_image", "input_audio", "audio_url", "video_url", "file", "input_file")


def _content(value: Any) -> str | None:
    """Return a message's text; the texts of several parts are joined by newlines."""
    if value is None:
        return None
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, list) or not 1 <= len(value) <= 1024:
        raise ValueError("must be a text or a list of 1 to 1024 parts")
    return _text("\n".join(_part_text(part, index) for index, part in enumerate(value)))


def _part_text(part: Any, index: int) -> str:
    """Return the text of a part, the one at `index` of its content."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _UNREADABLE:
        shown = {"place": (index, "type"), "kind": kind}
        raise PydanticCustomError("unsupported_parameter", "this model reads text only, not {kind}", shown)
    field = _TEXT_FIELDS.get(kind) if isinstance(kind, str) else None
    if field is not None and isinstance(part.get(field), str):
        return str(part[field])
    place = (index, field or "type") if isinstance(part, dict) else (index,)
    shape = {"place": place, "shape": '{"type": "text", "text": "..."}'}
    raise PydanticCustomError("value_error", "a part of a content must be of the shape {shape}", shape)


Prompts = Annotated[list[str] | list[list[int]], BeforeValidator(_prompts)]
Content = Annotated[str | None, BeforeValidator(_content)]
Inputs = Annotated[list[str] | list[list[int]], BeforeValidator(partial(_prompts, most=MAX_INPUTS))]
"""Texts or token ids to be embedded."""
