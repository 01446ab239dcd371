# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Least recently used: the block that has rested longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class LeastRecentlyUsed:
    """Everything in O(1)."""

    def __init__(self) -> None:
        self._resting: OrderedDict[int, None] = OrderedDict()

    def rest(self, block: int, uses: int, priority: int) -> None:
        """A block is unused from now on."""
        self._resting[block] = None

    def remove(self, block: int) -> None:
        """A resting block is used again, or forgotten."""
        del self._resting[block]

    def evict(self) -> int:
        """The block that rested longest."""
        return self._resting.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._resting)

    def __iter__(self) -> Iterator[int]:
        return iter(self._resting)
