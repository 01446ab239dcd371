"""Tells each text worker which grammars the others have compiled, so that a grammar is checked once, not by each."""

from __future__ import annotations

from itertools import takewhile
from weakref import WeakKeyDictionary

from octavo_engine.structured.grammar_check import MOST_PASSED


class CheckedGrammars:
    """Digests of grammars that could be compiled, and how many of them each worker has been told."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        """The digests with their numbers, which count from 1, in order. The oldest are forgotten."""
        self._last = 0
        self._told: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        """The last number that each worker has been told."""

    def add(self, digest: bytes) -> None:
        """Note that a worker has compiled the grammar with this digest."""
        if digest in self._numbers:
            return
        self._last += 1
        self._numbers[digest] = self._last
        if len(self._numbers) > MOST_PASSED:
            del self._numbers[next(iter(self._numbers))]

    def untold(self, worker: object) -> list[bytes]:
        """Return the digests that were added since the last call for this worker, the newest at the end."""
        told, self._told[worker] = self._told.get(worker, 0), self._last
        newest_first = takewhile(lambda digest: self._numbers[digest] > told, reversed(self._numbers))
        return [*newest_first][::-1]
