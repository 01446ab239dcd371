"""Turns an answer's tokens into text as they arrive: complete characters, and no text that may begin a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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


class _StopString:
    """Finds a stop string in a text that comes character by character (Knuth, Morris and Pratt, 1977).

    The time for a character depends neither on the string's length nor on how much of it has come.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """The length of the longest beginning of the stop string with which the text ends so far."""
        self._shorter = _shorter_beginnings(text)

    def push(self, character: str) -> bool:
        """Read the text's next character; return True if the stop string is complete."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._shorter[self.matched]
        self.matched += self.text[self.matched] == character
        return self.matched == len(self.text)


@lru_cache(1024)
def _shorter_beginnings(text: str) -> tuple[int, ...]:
    """Return for each length of a beginning of `text` that of the longest shorter one with which it ends."""
    found, length = [0, 0], 0
    for character in text[1:]:
        while length and text[length] != character:
            length = found[length]
        length += text[length] == character
        found.append(length)
    return tuple(found)


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
        self._stops = [_StopString(each) for each in stop]
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
        if self.num_tokens <= self._min_tokens or not self._stops:
            return new
        text = self._held + new
        for end, character in enumerate(new, len(self._held) + 1):
            if complete := [stop.text for stop in self._stops if stop.push(character)]:
                self.stopped, self._held = complete[0], ""
                return text[:end] if self._include_stop else text[: end - len(complete[0])]
        kept = len(text) - (0 if last else max(stop.matched for stop in self._stops))
        self._held = text[kept:]
        return text[:kept]
