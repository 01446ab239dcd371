"""Turns an answer's tokens into text as they arrive: complete characters, and no text that may begin a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.text.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


@dataclass(slots=True)
class TextDelta:
    """The text that some tokens added to an answer."""

    text: str
    """Empty if the text of the tokens is held back, or if they have no text."""
    tokens: int
    """The number of given tokens that belong to the answer; fewer than given if a stop string ended it."""
    stop: str | None = None
    """The stop string that ended the answer; it is not part of `text`."""


class Detokenizer:
    """The detokenizer of one answer. The time for a token does not depend on the length of the answer.

    The stop string that is complete first ends the answer; of several that are complete at the same character, it is
    the first of `stop`. A stop string counts only if none of it lies within the first `min_tokens` tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._decoder = _utf8(errors="replace")
        self._stop = tuple(stop)
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._skip_special = skip_special_tokens
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.num_tokens = 0
        self.stopped: str | None = None

    def push(self, token_ids: Sequence[int], *, last: bool = False) -> TextDelta:
        """Return the text that `token_ids` add; if they are the `last` tokens, with all text that was held back."""
        text = ""
        used = 0
        for token_id in token_ids:
            if self.stopped is not None:
                break
            used += 1
            text += self._push_one(token_id)
        if last and self.stopped is None:
            text += self._take(self._decoder.decode(b"", final=True), last=True)
        return TextDelta(text, used, self.stopped)

    def _push_one(self, token_id: int) -> str:
        self.num_tokens += 1
        if self._skip_special and self._tokenizer.is_special(token_id):
            return ""
        return self._take(self._decoder.decode(self._tokenizer.token_bytes(token_id)))

    def _take(self, new: str, *, last: bool = False) -> str:
        if self.num_tokens <= self._min_tokens:
            return new
        text = self._held + new
        if (found := self._find_stop(text)) is not None:
            end, self.stopped = found
            self._held = ""
            return text[:end] if self._include_stop else text[: end - len(self.stopped)]
        kept = len(text) - (0 if last else self._beginning_of_stop(text))
        self._held = text[kept:]
        return text[:kept]

    def _find_stop(self, text: str) -> tuple[int, str] | None:
        ends = [(at + len(stop), order) for order, stop in enumerate(self._stop) if (at := text.find(stop)) >= 0]
        if not ends:
            return None
        end, order = min(ends)
        return end, self._stop[order]

    def _beginning_of_stop(self, text: str) -> int:
        """Return the length of the longest end of `text` that is a beginning of a stop string."""
        longest = 0
        for stop in self._stop:
            for size in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:size]):
                    longest = size
                    break
        return longest
