"""Log probabilities of a text's tokens in the shape of OpenAI's completions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from octavo_engine.core.request import TokenLogprobs
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(slots=True)
class TextLogprobs:
    """Parallel lists with one entry a token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    """None for the first token of a text: nothing comes before it."""
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    """The likeliest tokens at this position, and the chosen one. Of tokens with the same text the likeliest counts."""
    text_offset: list[int] = field(default_factory=list)
    """The position of each token in the text, in characters."""


def text_logprobs(positions: Iterable[TokenLogprobs], tokenizer: Tokenizer, offset: int = 0) -> TextLogprobs:
    """The log probabilities of consecutive tokens, the first of which begins at `offset` in the text."""
    found = TextLogprobs()
    text_of = tokenizer.token_text
    for position in positions:
        token, logprob = text_of(position.token_id), clamp(position.logprob)
        found.tokens.append(token)
        found.token_logprobs.append(logprob)
        found.top_logprobs.append(_by_text((*position.top, (position.token_id, position.logprob)), tokenizer))
        found.text_offset.append(offset)
        offset += len(token)
    return found


def prompt_text_logprobs(
    first: int, positions: Iterable[TokenLogprobs], tokenizer: Tokenizer, most: int
) -> TextLogprobs:
    """Log probabilities of a prompt for /v1/completions, whose `first` token has none; `most` alternatives at most."""
    token = tokenizer.token_text(first)
    kept = (replace(position, top=position.top[:most]) for position in positions)
    rest = text_logprobs(kept, tokenizer, len(token))
    return join(TextLogprobs([token], [None], [None], [0]), rest)


def join(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """Both, one after the other."""
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def _by_text(values: Iterable[tuple[int, float]], tokenizer: Tokenizer) -> dict[str, float]:
    found: dict[str, float] = {}
    for token_id, logprob in values:
        text = tokenizer.token_text(token_id)
        found[text] = max(clamp(logprob), found.get(text, -math.inf))
    return found


@dataclass(frozen=True, slots=True)
class PromptLogprob:
    """One token at one place of a prompt, in vLLM's shape."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt a mapping from token ids as text to the token and the likeliest ones; None for the
first."""


def prompt_logprobs(positions: Iterable[TokenLogprobs], tokenizer: Tokenizer, most: int) -> PromptLogprobs:
    """Log probabilities of a prompt in the shape of vLLM's `prompt_logprobs`, with at most `most` alternatives."""
    found: PromptLogprobs = [None]
    for position in positions:
        ranked = [(token, value, rank) for rank, (token, value) in enumerate(position.top[:most], 1)]
        own = position.token_id, position.logprob, position.rank
        found.append(
            {
                str(token): PromptLogprob(clamp(value), rank, tokenizer.token_text(token))
                for token, value, rank in (own, *ranked)
            }
        )
    return found


def clamp(logprob: float) -> float:
    """JSON has no infinity: -9999 stands for it, as in vLLM."""
    return logprob if math.isfinite(logprob) else -9999.0
