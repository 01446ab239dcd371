"""Prompt lookup: proposes the tokens that followed an earlier occurrence of the newest tokens.

Saxena 2023, "Prompt Lookup Decoding" (https://github.com/apoorvumang/prompt-lookup-decoding); vLLM's method `ngram`.
Answers that repeat their prompt (edits of code, extraction, summaries of documents) gain most.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from octavo_engine.speculative.settings import SpeculativeSettings

_TOKEN = array("i").itemsize
_MOST_TRIES = 16
"""The most matches that are looked at. Equal bytes that begin within a token are not a match; in a text with very many
of them the search would otherwise take long at each token."""


class NGramProposer:
    """Proposes draft tokens by prompt lookup. It keeps each request's tokens as bytes, in which a search is fast."""

    def __init__(self, settings: SpeculativeSettings) -> None:
        self._settings = settings
        self._texts: dict[str, bytearray] = {}

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that followed the last occurrence of the longest n-gram that `token_ids` ends with.

        The result is empty if the n-gram has not occurred before.
        """
        text = self._texts.setdefault(request_id, bytearray())
        text += array("i", token_ids[len(text) // _TOKEN :]).tobytes()
        for length in range(self._settings.lookup_max, self._settings.lookup_min - 1, -1):
            if (end := _end_of_match(text, length * _TOKEN)) >= 0:
                drafts = array("i", bytes(text[end : end + self._settings.num_speculative_tokens * _TOKEN]))
                return drafts.tolist()
        return ()

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._texts.pop(request_id, None)


def _end_of_match(text: bytearray, size: int) -> int:
    """Return where the last earlier occurrence of the final `size` bytes ends; -1 if none is found."""
    if len(text) <= size:
        return -1
    wanted, before = text[-size:], len(text) - 1
    for _ in range(_MOST_TRIES):
        start = text.rfind(wanted, 0, before)
        if start % _TOKEN == 0 or start < 0:
            return start if start < 0 else start + size
        before = start + size - 1
    return -1
