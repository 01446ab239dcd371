"""Text that arrives in pieces, read by generators that wait for more of it.

A generator yields an event when it has one, and `MORE` when it cannot go on before more text has arrived. However the
text is cut into pieces, each character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

MORE = None
"""The value that a generator yields to wait for more text."""
_SPACE = re.compile(r"\s*")
_HEAD = 1 << 16
"""Characters that have been read are dropped once there are so many."""
_MOST_SPACE = 64
"""Characters of white space that are held back because a marker might follow."""
E = TypeVar("E")
Steps = Generator[E | None, None, bool]
"""Yields events, or MORE; returns whether it found what it looked for before the text ended."""


class StreamedText:
    """The text that has arrived and has not been read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark: int | None = None
        self.ended = False
        """Whether no more text will arrive."""

    def append(self, text: str) -> None:
        """Append text that has arrived."""
        if self._mark is None and self._at > _HEAD:
            self._text, self._at = self._text[self._at :], 0
        self._text += text

    def mark(self) -> None:
        """Keep the text that is read from now on, so that it can be read again in another way."""
        self._mark = self._at

    def read_since_mark(self) -> str:
        """Return the text read since `mark`, and forget the mark."""
        start, self._mark = self._at if self._mark is None else self._mark, None
        return self._text[start : self._at]

    def __len__(self) -> int:
        return len(self._text) - self._at

    def __getitem__(self, index: int) -> str:
        return self._text[self._at + index]

    def take(self, count: int | None = None) -> str:
        """Read and return the next `count` characters, or all that have arrived."""
        end = len(self._text) if count is None else self._at + count
        text, self._at = self._text[self._at : end], end
        return text

    def find(self, marker: str) -> int:
        """Return the position of a marker in the text not yet read, or -1."""
        found = self._text.find(marker, self._at)
        return found if found < 0 else found - self._at

    def starts_with(self, marker: str) -> bool:
        """Return True if a marker comes next."""
        return self._text.startswith(marker, self._at)

    def may_become(self, marker: str) -> bool:
        """Return True if the unread text could be the beginning of a marker."""
        return not self.ended and marker.startswith(self._text[self._at :])

    def spaces(self) -> int:
        """Return the number of white space characters that come next."""
        found = _SPACE.match(self._text, self._at)
        return found.end() - self._at if found else 0

    def kept_for(self, markers: Sequence[str]) -> int:
        """Return how many of the last characters might begin a marker, with the white space before them."""
        if self.ended:
            return 0
        longest = max(map(len, markers)) - 1
        tail = self._text[max(self._at, len(self._text) - longest) :]
        start = next((i for i in range(len(tail)) if any(m.startswith(tail[i:]) for m in markers)), len(tail))
        end = len(self._text) - len(tail) + start
        rest = self._text[max(self._at, end - _MOST_SPACE) : end]
        return len(tail) - start + len(rest) - len(rest.rstrip())


def skip_spaces(text: StreamedText) -> Steps[E]:
    """Read white space; False if the text ends before anything else comes."""
    while True:
        text.take(text.spaces())
        if len(text):
            return True
        if text.ended:
            return False
        yield MORE


def expect(text: StreamedText, marker: str) -> Steps[E]:
    """Read a marker if it comes next, else nothing."""
    while not text.starts_with(marker):
        if not text.may_become(marker):
            return False
        yield MORE
    text.take(len(marker))
    return True


def read_until(text: StreamedText, *markers: str) -> Generator[None, None, str | None]:
    """Return all text before the first of some markers, which is read too; None if the text ends before one comes."""
    parts: list[str] = []
    while (found := _first(text, markers)) is None:
        keep = 0 if text.ended else min(len(text), max(map(len, markers)) - 1)
        parts.append(text.take(len(text) - keep))
        if text.ended:
            return None
        yield MORE
    marker, at = found
    parts.append(text.take(at))
    text.take(len(marker))
    return "".join(parts)


def pass_until(text: StreamedText, make: Callable[[str], E], *markers: str) -> Steps[E]:
    """Yield what `make` makes of the text before the first of some markers, as it arrives; the marker is read too.

    White space before a marker belongs to it.
    """
    while (found := _first(text, markers)) is None:
        if count := len(text) - text.kept_for(markers):
            yield make(text.take(count))
        if text.ended:
            return False
        yield MORE
    marker, at = found
    if before := text.take(at).rstrip():
        yield make(before)
    text.take(len(marker))
    return True


def _first(text: StreamedText, markers: Sequence[str]) -> tuple[str, int] | None:
    """Return the marker that comes first, and where."""
    found = [(marker, at) for marker in markers if (at := text.find(marker)) >= 0]
    return min(found, key=lambda each: each[1], default=None)
