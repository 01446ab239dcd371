"""The sampling parameters of a request, each declared only here with its range, and the defaults of some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

LEAST_TOP_P = 1e-6


class Range(NamedTuple):
    """The range of a numeric field of `SamplingParams`, enforced by `request_checks`. The API's ranges are narrower."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters by which each token is sampled and an answer ends."""

    max_tokens: int  # 0: no answer, only the prompt's log probabilities or its embedding
    min_tokens: Annotated[int, Range(0, 1 << 31)] = 0
    temperature: Annotated[float, Range(0, 1e4)] = 1.0  # 0 is greedy; of equal logits the smallest id wins
    top_k: Annotated[int, Range(0, 1 << 31)] = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: Annotated[float, Range(LEAST_TOP_P, 1)] = 1.0  # keep the likeliest tokens that reach this probability
    min_p: Annotated[float, Range(0, 1)] = 0.0  # drop tokens less likely than min_p times the likeliest
    seed: Annotated[int | None, Range(1 - (1 << 64), (1 << 64) - 1)] = None  # None: derived from the engine's
    presence_penalty: Annotated[float, Range(-100, 100)] = 0.0
    frequency_penalty: Annotated[float, Range(-100, 100)] = 0.0
    repetition_penalty: Annotated[float, Range(0.01, 100)] = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each at most once, and numbers added to their logits
    allowed_token_ids: tuple[int, ...] = ()  # the only tokens that may be chosen; empty allows all
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # sequences of one or more tokens that no answer contains
    stop_token_ids: tuple[int, ...] = ()  # end the answer; servers add the model's own, unless ignore_eos
    ignore_eos: bool = False
    logprobs: Annotated[int | None, Range(0, 1000)] = None  # None: none; n: of the chosen token and of the n likeliest
    prompt_logprobs: Annotated[int | None, Range(0, 1000)] = None  # the same for each token of the prompt but its first
    grammar: str | None = None  # the answer follows this grammar, written as structured/grammar.py does; None: any text


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values for the fields of `SamplingParams` that a request does not set: the model's own, or neutral ones."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
