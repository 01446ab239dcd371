"""Log probabilities of a text's tokens in the shape of OpenAI's completions."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import takewhile

from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.text.tokenizer import Tokenizer

TokenName = Callable[[int], str]
"""The name of a token in log probabilities, from its id."""


def id_name(token_id: int) -> str:
    """Return a token's name under vLLM's `return_tokens_as_token_ids`: unlike its text, no other token has it."""
    return f"token_id:{token_id}"


@dataclass(slots=True)
class TextLogprobs:
    """The log probabilities of a text's tokens, as parallel lists with one entry for each token."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    """None for the first token of a text: nothing comes before it."""
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    """The likeliest tokens at each position, and the chosen one. Of tokens with the same name the likeliest counts."""
    text_offset: list[int] = field(default_factory=list)
    """The position in the text, in characters, of the character in which each token begins."""


class TextOffsets:
    """Computes the position in a text, in characters, at which each of its tokens begins.

    `skip_special_tokens` says that the text does not have special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, start: int = 0, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special_tokens
        self._next = start
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def take(self, token_id: int) -> int:
        """Return the position of the text's next token, `token_id`."""
        found = self._next
        if self._skip_special and self._tokenizer.is_special(token_id):
            return found
        self._next += len(self._decoder.decode(self._tokenizer.token_bytes(token_id)))
        return found


def text_logprobs(
    positions: Iterable[TokenLogprobs],
    tokenizer: Tokenizer,
    offsets: TextOffsets | None = None,
    name: TokenName | None = None,
) -> TextLogprobs:
    """Return the log probabilities of consecutive tokens of a text.

    They are the text's first tokens unless `offsets` has already taken others. A token's name is its text unless `name`
    gives it another one.
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
    text: str,
    first: int,
    positions: Iterable[TokenLogprobs],
    tokenizer: Tokenizer,
    most: int,
    name: TokenName | None = None,
) -> TextLogprobs:
    """Return the log probabilities of the prompt `text` for /v1/completions.

    The prompt's `first` token has none. Each other position has at most `most` of the likeliest tokens.
    """
    name, offsets = name or tokenizer.token_text, TextOffsets(tokenizer, skip_special_tokens=False)
    kept = [replace(position, top=position.top[:most]) for position in positions]
    equal = 1 + sum(1 for _ in takewhile(lambda position: position.token_id == first, kept))
    if text.startswith(tokenizer.token_text(first) * equal) or not tokenizer.is_special(first):
        offsets.take(first)  # else the tokenizer has added it, and the text does not have it
    begun = TextLogprobs([name(first)], [None], [None], [0])
    return join(begun, text_logprobs(kept, tokenizer, offsets, name))


def join(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """Return the log probabilities of two consecutive parts of a text as one."""
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
    """The log probability of one token at one position of a prompt, in vLLM's shape."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt, a mapping from the ids (as text) of the token and of the likeliest ones to their log
probabilities; None for the first token."""


def prompt_logprobs(positions: Iterable[TokenLogprobs], tokenizer: Tokenizer, most: int) -> PromptLogprobs:
    """Return a prompt's log probabilities in the shape of vLLM's `prompt_logprobs`.

    Each position has the prompt's token and at most `most` of the likeliest ones.
    """
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
    """Return the log probability, or -9999 if it is not finite, as in vLLM: JSON has no infinity."""
    return logprob if math.isfinite(logprob) else -9999.0
