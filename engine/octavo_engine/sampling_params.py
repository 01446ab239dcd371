"""The parameters of sampling: each field of `SamplingParams` is declared here alone, with its range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

LEAST_TOP_P = 1e-6


class Range(NamedTuple):
    """The values that a number of `SamplingParams` may have. `request_checks` holds them; the server's are narrower."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters that choose each token and end an answer. Each field is declared here alone, with its range."""

    max_tokens: int  # 0 asks only for what the prompt itself gives
    min_tokens: Annotated[int, Range(0, 1 << 31)] = 0
    temperature: Annotated[float, Range(0, 1e4)] = 1.0  # 0 is greedy; of equal logits the smallest id wins
    top_k: Annotated[int, Range(0, 1 << 31)] = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: Annotated[float, Range(LEAST_TOP_P, 1)] = 1.0  # keep the likeliest tokens that reach this probability
    min_p: Annotated[float, Range(0, 1)] = 0.0  # drop tokens less likely than min_p times the likeliest
    seed: Annotated[int | None, Range(1 - (1 << 64), (1 << 64) - 1)] = None  # None: the engine's own
    presence_penalty: Annotated[float, Range(-100, 100)] = 0.0
    frequency_penalty: Annotated[float, Range(-100, 100)] = 0.0
    repetition_penalty: Annotated[float, Range(0.01, 100)] = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token ids, each at most once, and what is added to their logits
    allowed_token_ids: tuple[int, ...] = ()  # the only tokens that may be chosen; empty allows all
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()  # sequences of one or more tokens that no answer contains
    stop_token_ids: tuple[int, ...] = ()  # end the answer; servers add the model's own ends, unless ignore_eos
    ignore_eos: bool = False
    logprobs: Annotated[int | None, Range(0, 1000)] = None  # None: none; n: the chosen token's and the n likeliest's
    prompt_logprobs: Annotated[int | None, Range(0, 1000)] = None  # the same for each token of the prompt but its first
    grammar: str | None = None  # what the answer must follow, in the language of structured/grammar.py; None: any text
