"""How a request's tokens are chosen: each field of `SamplingParams` is declared here alone, with its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEAST_TOP_P = 1e-6


@dataclass(frozen=True, slots=True)
class Range:
    """The values that a number of `SamplingParams` may have. `check_sampling` holds them; the server's are narrower."""

    low: float
    high: float
    whole: bool
    optional: bool


def _number(default: float, low: float, high: float) -> Any:
    """A field for a number from `low` to `high`."""
    return field(default=default, metadata={"range": Range(low, high, whole=False, optional=False)})


def _integer(default: int | None, low: int, high: int) -> Any:
    """A field for a whole number from `low` to `high`, or None if that is its default."""
    return field(default=default, metadata={"range": Range(low, high, whole=True, optional=default is None)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. Each field is declared here alone, with its range."""

    max_tokens: int
    min_tokens: int = _integer(0, 0, 1 << 31)
    temperature: float = _number(1.0, 0, 1e4)
    """0 is greedy: the largest logit, the smallest token id among equals."""
    top_k: int = _integer(0, 0, 1 << 31)
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = _number(1.0, LEAST_TOP_P, 1)
    """Keep the smallest set of likeliest tokens that has this probability together; 1 keeps all."""
    min_p: float = _number(0.0, 0, 1)
    """Drop tokens less likely than min_p times the likeliest."""
    seed: int | None = _integer(None, 1 - (1 << 64), (1 << 64) - 1)
    """Of the random numbers; None takes one from the engine's own seed."""
    presence_penalty: float = _number(0.0, -100, 100)
    frequency_penalty: float = _number(0.0, -100, 100)
    repetition_penalty: float = _number(1.0, 0.01, 100)
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each at most once, and what is added to their logits."""
    stop_token_ids: tuple[int, ...] = ()
    """What ends the answer. The server and `LLM` add the model's own ends, unless `ignore_eos`."""
    ignore_eos: bool = False
    logprobs: int | None = _integer(None, 0, 1000)
    """None: none; n: the chosen token's and the n likeliest tokens'."""
    grammar: str | None = None
    """What the answer must be a sentence of, in llguidance's language (structured/grammar.py); None: any text."""


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """The parameters with these names and values, as JSON has them; TypeError for a name that there is not.

    Lists become tuples, and objects, whose keys are token ids, tuples of pairs.
    """
    return SamplingParams(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((int(token), number) for token, number in value.items())
    return value


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request's SamplingParams are where it says nothing: the model's own, or neutral."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
