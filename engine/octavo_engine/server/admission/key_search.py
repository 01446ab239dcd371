"""Finds API keys in texts, without holding them: only hashes of keys and of some of their beginnings are kept."""

from __future__ import annotations

from collections.abc import Collection

SHORTEST_HIDDEN = 6
"""Characters of the shortest key that is looked for in texts; a key of one letter would make them unreadable."""


class KeySearch:
    """The places of keys in texts, by binary search on the keys' lengths (Waldvogel et al., SIGCOMM 1997).

    At each place of a text where a key may begin, a few beginnings are hashed: 10 for keys of 1,000 different lengths.
    So no text takes long, whatever keys and text have in common.
    """

    def __init__(self, keys: Collection[str]) -> None:
        keys = sorted((key for key in keys if len(key) >= SHORTEST_HIDDEN), key=len)
        self._firsts = {hash(key[:SHORTEST_HIDDEN]) for key in keys}
        self._lengths = sorted({len(key) for key in keys})
        self._longest: dict[int, int] = {}
        """For the hash of each key, and of those beginnings of keys that a search meets on its way to a longer one:
        the length of the longest key that such a text begins with, 0 if there is none."""
        for key in keys:  # the shorter ones first, as a longer one may begin with them
            self._longest[hash(key)] = len(key)
            for length in self._lengths_before(len(key)):
                self._longest.setdefault(hash(key[:length]), self._length_at(key[:length], 0))

    def _lengths_before(self, length: int) -> list[int]:
        """Return the shorter lengths that a search meets on its way to the keys of a length."""
        low, high, met = 0, len(self._lengths), list[int]()
        while (middle := (low + high) // 2) < high and (tried := self._lengths[middle]) != length:
            if tried < length:
                met.append(tried)
                low = middle + 1
            else:
                high = middle
        return met

    def _length_at(self, text: str, at: int) -> int:
        """Return the length of the longest key that begins at a place of the text; 0 if there is none."""
        low, high, found = 0, len(self._lengths), 0
        while low < high:
            middle = (low + high) // 2
            longest = self._longest.get(hash(text[at : at + self._lengths[middle]]))
            if longest is None:
                high = middle
            else:
                low, found = middle + 1, longest
        return found

    def hide(self, text: str) -> str:
        """Return `text` with `...` in place of each key; where two begin at one place, the longer one is hidden."""
        shown, end = list[str](), 0
        for at in range(len(text)):
            may_begin = at >= end and hash(text[at : at + SHORTEST_HIDDEN]) in self._firsts
            if may_begin and (length := self._length_at(text, at)):
                shown += (text[end:at], "...")
                end = at + length
        return "".join((*shown, text[end:]))
