"""`--speculative-config`: how draft tokens are proposed, as JSON with vLLM's keys."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import ConfigurationError

METHODS = ("ngram",)
_FLAG = "--speculative-config"
_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}'
_KEYS = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
_MOST = 64
"""The most draft tokens, and the most tokens of an n-gram."""
_LENGTH = 5
"""The length of n-grams if neither bound is given, as in vLLM."""


@dataclass(frozen=True, slots=True)
class SpeculativeSettings:
    """The settings of prompt lookup: how many tokens are proposed at most, and the lengths of n-grams in tokens."""

    num_speculative_tokens: int
    lookup_min: int
    lookup_max: int


def parse_speculative(text: str) -> SpeculativeSettings:
    """Return the settings in a JSON text; ConfigurationError, with the reason, if they are not valid."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{_FLAG}: {text[:100]!r} is not valid JSON; an example: {_EXAMPLE}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{_FLAG}: {text[:100]!r} is not a JSON object; an example: {_EXAMPLE}")
    method = values.get("method")
    if method not in METHODS:
        raise ConfigurationError(f"{_FLAG}: method {method!r} is not supported; the methods are {', '.join(METHODS)}")
    if unknown := sorted(set(values) - set(_KEYS)):
        raise ConfigurationError(f"{_FLAG}: {unknown[0][:100]!r} is not supported; the keys are {', '.join(_KEYS)}")
    tokens = _number(values, "num_speculative_tokens")
    if tokens is None:
        raise ConfigurationError(f"{_FLAG}: num_speculative_tokens is missing; an example: {_EXAMPLE}")
    most, least = _number(values, "prompt_lookup_max"), _number(values, "prompt_lookup_min")
    most, least = most or least or _LENGTH, least or most or _LENGTH
    if least > most:
        raise ConfigurationError(f"{_FLAG}: prompt_lookup_min {least} is above prompt_lookup_max {most}")
    return SpeculativeSettings(tokens, least, most)


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
        raise ConfigurationError(f"{_FLAG}: {key} {str(value)[:100]!r} is not a whole number from 1 to {_MOST}")
    return value
