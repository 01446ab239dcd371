"""Log probabilities of a text's tokens in the shape of OpenAI's completions."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from octavo_engine.core.request import TokenLogprobs
from octavo_engine.text.tokenizer import Tokenizer

TokenName = Callable[[int], str]
"""The name of a token in log probabilities, from its id."""


def id_name(token_id: int) -> str:
    """Return the name of vLLM's `return_tokens_as_token_ids`: no two tokens share it, as two may share a text."""
    return f"token_id:{token_id}"


@dataclass(slots=True)
class TextLogprobs:
    """Parallel lists with one entry a token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    """None for the first token of a text: nothing comes before it."""
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    """The likeliest tokens at this position, and the chosen one. Of tokens with the same name the likeliest counts."""
    text_offset: list[int] = field(default_factory=list)
    """The position of each token in the text, in characters: of one within a character, that character's."""


class TextOffsets:
    """The position in a text of each of its tokens in turn."""

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._next = start
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, token_id: int) -> int:
        """Return the position of the next token."""
        found = self._next
        self._next += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return found


def text_logprobs(
    positions: Iterable[TokenLogprobs],
    tokenizer: Tokenizer,
    offsets: TextOffsets | None = None,
    name: TokenName | None = None,
) -> TextLogprobs:
    """The log probabilities of consecutive tokens of a text, the first ones unless `offsets` has had others.

    A token's name is its text unless `name` gives it another one.
    """
    found = TextLogprobs()
    name, offsets = name or tokenizer.token_text, offsets or TextOffsets(tokenizer)
    for position in positions:
        found.tokens.append(name(position.token_id))
        found.token_logprobs.append(clamp(position.logprob))
        found.top_logprobs.append(_by_name((*position.top, (position.token_id, position.logprob)), name))
        found.text_offset.append(offsets.take(position.token_id))
    return found


def prompt_text_logprobs(
    first: int,
    positions: Iterable[TokenLogprobs],
    tokenizer: Tokenizer,
    most: int,
    name: TokenName | None = None,
) -> TextLogprobs:
    """Log probabilities of a prompt for /v1/completions, whose `first` token has none; `most` alternatives at most."""
    name, offsets = name or tokenizer.token_text, TextOffsets(tokenizer)
    begun = TextLogprobs([name(first)], [None], [None], [offsets.take(first)])
    kept = (replace(position, top=position.top[:most]) for position in positions)
    return join(begun, text_logprobs(kept, tokenizer, offsets, name))


def join(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """Both, one after the other."""
    return TextLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def _by_name(values: Iterable[tuple[int, float]], name: TokenName) -> dict[str, float]:
    found: dict[str, float] = {}
    for token_id, logprob in values:
        token = name(token_id)
        found[token] = max(clamp(logprob), found.get(token, -math.inf))
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
