"""The field `structural_tag` in its two forms: an older one, and xgrammar's, which is made of parts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from octavo_engine.server.openai.bodies.body import StrictBody
from octavo_engine.structured.grammar import MAX_CHARACTERS

_MAX_DEPTH = 8
_MAX_PARTS = 128
_MAX_TRIGGERS = 64
_KINDS = (
    "const_string",
    "json_schema",
    "regex",
    "any_text",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
)
Words = Annotated[str, Field(max_length=4096)]


class ConstString(StrictBody):
    """A part that is a fixed text."""

    type: Literal["const_string"]
    value: Annotated[str, Field(min_length=1, max_length=4096)]


class JSONSchema(StrictBody):
    """A part that is JSON under a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] | Literal[True]


class Regex(StrictBody):
    """A part that matches a regular expression."""

    type: Literal["regex"]
    pattern: Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS)]


class AnyText(StrictBody):
    """A part that is any text."""

    type: Literal["any_text"]


class Sequence(StrictBody):
    """A part that consists of parts one after another."""

    type: Literal["sequence"]
    elements: Annotated[list[Part], Field(min_length=1, max_length=_MAX_PARTS)]


class Or(StrictBody):
    """A part that is one of several parts."""

    type: Literal["or"]
    elements: Annotated[list[Part], Field(min_length=1, max_length=_MAX_PARTS)]


class Tag(StrictBody):
    """A part between two texts."""

    type: Literal["tag"] = "tag"
    begin: Annotated[str, Field(min_length=1, max_length=4096)]
    content: Part
    end: Words | Annotated[list[Words], Field(min_length=1, max_length=_MAX_PARTS)]


Triggers = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=256)]], Field(min_length=1, max_length=_MAX_TRIGGERS)
]
Tags = Annotated[list[Tag], Field(min_length=1, max_length=_MAX_PARTS)]


class TriggeredTags(StrictBody):
    """A part that is any text, in which each trigger begins one of the tags."""

    type: Literal["triggered_tags"]
    triggers: Triggers
    tags: Tags
    at_least_one: bool = False
    stop_after_first: bool = False


class TagsWithSeparator(StrictBody):
    """A part that consists of tags, with a separator between them."""

    type: Literal["tags_with_separator"]
    tags: Tags
    separator: Words
    at_least_one: bool = False
    stop_after_first: bool = False


def _known(value: Any) -> Any:
    """Refuse a part of an unknown type with an error that names the known ones."""
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in _KINDS:
        message = "a part of type {kind} is not supported by this version; supported: {known}"
        shown = {"place": ("type",), "kind": kind[:100], "known": ", ".join(_KINDS)}
        raise PydanticCustomError("unsupported_parameter", message, shown)
    return value


Part = Annotated[
    Annotated[
        ConstString | JSONSchema | Regex | AnyText | Sequence | Or | Tag | TriggeredTags | TagsWithSeparator,
        Field(discriminator="type"),
    ],
    BeforeValidator(_known),
]


def _bounded(value: Any) -> Any:
    """Refuse parts that are nested too deeply. JSON schemas, which have a limit of their own, are not counted."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [child for each in level if isinstance(each, dict) for child in _parts(each)]
    if level:
        raise ValueError(f"holds more than {_MAX_DEPTH} parts within one another")
    return value


def _parts(part: dict[str, Any]) -> list[Any]:
    lists = [found for name in ("elements", "tags") if isinstance(found := part.get(name), list)]
    return [*(each for found in lists for each in found), *([part["content"]] if "content" in part else [])]


Form = Annotated[Part, BeforeValidator(_bounded)]
"""The `format` of a structural tag."""


class Structure(StrictBody):
    """A tag in the older form: JSON under a schema between two texts."""

    begin: Annotated[str, Field(min_length=1, max_length=4096)]
    schema_: Annotated[dict[str, Any] | Literal[True], Field(alias="schema")]
    end: Words


def older_form(structures: list[Structure], triggers: list[str]) -> dict[str, Any]:
    """Return the `format` that means the same as these fields of the older form."""
    tags = [
        {"begin": each.begin, "content": {"type": "json_schema", "json_schema": each.schema_}, "end": each.end}
        for each in structures
    ]
    return {
        "type": "triggered_tags",
        "triggers": triggers,
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": False,
    }
