"""Fields that a body's API does not have: one with a misspelled name is refused, another is logged once and ignored."""

from __future__ import annotations

import difflib
import re
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from octavo_engine.server.errors import APIError

_SIMILARITY = 0.88
"""difflib's ratio from which a name counts as misspelled. `max_token` has 0.95, `maxTokens` and `topP` have 0.89; names
that are fields of other servers' APIs and mean something else have less, except those below."""
_OTHER_MEANINGS = frozenset({"models", "return_tokens", "speed"})
"""Fields of OpenRouter's, llama.cpp's and Anthropic's APIs that look like `model`, `return_token_ids` and `seed`."""
_MOST_COMPARED = 8
"""Unknown fields of one body that are compared with known ones; they take some milliseconds."""
_LONGEST = 40
"""Characters of the longest name that is compared or logged."""
_WORDS = re.compile(r"[A-Za-z_]+")
"""The names that are noted. Another may be an API key or a part of a prompt, sent by mistake or to have it logged."""
_MOST_NOTED = 100
"""Names that one process notes; clients could send any number of them."""

_noted: set[str] = set()
_not_taken: list[str] = []


def check_names(kind: type[BaseModel], fields: Any) -> None:
    """Raise APIError 400 if a field is unknown and its name similar to that of a field that the body does not have.

    A field that is null is absent. `kind` is the class of the body `fields`. The names of other unknown fields are
    noted for `take_unknown`.
    """
    if not isinstance(fields, dict):
        return
    known = _names_of(kind)
    unknown = (name for name, value in fields.items() if name not in known and value is not None)
    for _, name in zip(range(_MOST_COMPARED), unknown, strict=False):
        if len(name) > _LONGEST:
            continue
        similar = _similar(kind, name)
        if similar is not None and fields.get(similar) is None:
            message = f"{name}: unknown field; did you mean {similar}?"
            raise APIError(400, message, param=name, code="unknown_parameter")
        _note(name)


@lru_cache(maxsize=64)
def _names_of(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


@lru_cache(maxsize=1024)
def _similar(kind: type[BaseModel], name: str) -> str | None:
    if name in _OTHER_MEANINGS:
        return None
    found = difflib.get_close_matches(name.lower(), sorted(_names_of(kind)), 1, _SIMILARITY)
    return found[0] if found else None


def _note(name: str) -> None:
    if _WORDS.fullmatch(name) and name not in _noted and len(_noted) < _MOST_NOTED:
        _noted.add(name)
        _not_taken.append(name)


def take_unknown() -> list[str]:
    """Return the names of unknown fields that this process has met for the first time since the last call."""
    names = list(_not_taken)
    _not_taken.clear()
    return names
