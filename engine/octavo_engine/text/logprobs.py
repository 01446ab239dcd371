"""Log probabilities of a text's tokens in the shape of OpenAI's completions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_engine.core.request import TokenLogprobs
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(slots=True)
class TextLogprobs:
    """Parallel lists with one entry a token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)
    """The likeliest tokens at this place, and the chosen one."""
    text_offset: list[int] = field(default_factory=list)
    """Where in the text each token begins, in characters."""


def text_logprobs(positions: Iterable[TokenLogprobs], tokenizer: Tokenizer, offset: int = 0) -> TextLogprobs:
    """The log probabilities of consecutive tokens, the first of which begins at `offset` in the text."""
    found = TextLogprobs()
    text_of = tokenizer.token_text
    for position in positions:
        token, logprob = text_of(position.token_id), clamp(position.logprob)
        found.tokens.append(token)
        found.token_logprobs.append(logprob)
        found.top_logprobs.append({text_of(top): clamp(value) for top, value in position.top} | {token: logprob})
        found.text_offset.append(offset)
        offset += len(token)
    return found


def clamp(logprob: float) -> float:
    """JSON has no infinity: -9999 stands for it, as in vLLM."""
    return logprob if math.isfinite(logprob) else -9999.0
