"""The vocabulary of a model for llguidance: the bytes of each token, and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

from octavo_engine.text.tokenizer import Tokenizer

_SPECIAL = b"\xff"
"""The byte with which control tokens begin here: no text contains it, so a grammar's text never is a control token."""


class _Vocabulary:
    """The attributes of a tokenizer that llguidance's `TokenizerWrapper` reads."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        ids = range(max(vocab_size, tokenizer.vocab_size))
        self.eos_token_id = ends[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = [token for token in ids if self._is_special(token)]
        self.tokens = [self._bytes(token) for token in ids]

    def _is_special(self, token: int) -> bool:
        """Return True if a token is not text: a control token, or a logit for which the tokenizer has no token."""
        return token >= self._tokenizer.vocab_size or self._tokenizer.is_special(token)

    def _bytes(self, token: int) -> bytes:
        if not self._is_special(token):
            return self._tokenizer.token_bytes(token)
        return _SPECIAL + (self._tokenizer.token_bytes(token) or f"<{token}>".encode())

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False)


class _Outline(_Vocabulary):
    """The same control tokens, while the text of each other token is one byte."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, tokenizer.vocab_size + 1, [tokenizer.vocab_size])

    def _bytes(self, token: int) -> bytes:
        return super()._bytes(token) if self._is_special(token) else bytes([token % 256])


@lru_cache(1)
def outline(tokenizer: Tokenizer) -> LLTokenizer:
    """Return a vocabulary for compiling grammars, not for following texts; it loads in a fifth of `vocabulary`'s time.

    The one of the last tokenizer is kept.
    """
    return LLTokenizer(TokenizerWrapper(_Outline(tokenizer)))


def vocabulary(tokenizer: Tokenizer, vocab_size: int, ends: Sequence[int]) -> LLTokenizer:
    """Return llguidance's tokenizer, for masks of `vocab_size` bits; any of `ends` may follow a complete answer.

    Raises ValueError if there are no `ends`: an answer could not end.
    """
    if not ends:
        raise ValueError(
            "the model names no token that ends an answer (eos_token_id), so answers cannot follow a grammar"
        )
    return LLTokenizer(TokenizerWrapper(_Vocabulary(tokenizer, vocab_size, ends)), eos_token=[*ends])
