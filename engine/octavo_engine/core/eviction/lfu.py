# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Least frequently used, with dynamic ageing (LFUDA: Arlitt, Cherkasova, Dilley, Friedrich, Jin, 1999).

A block's rank is how often it was found, plus the rank of the last one that went. What was popular long ago thus falls
behind what is popular now, and cannot fill the cache for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.core.eviction.ranked import RankedBlocks


class LeastFrequentlyUsed:
    """O(log n) a block."""

    def __init__(self) -> None:
        self._blocks = RankedBlocks()
        self._age = 0.0

    def rest(self, block: int, uses: int, priority: int) -> None:
        """A block is unused from now on."""
        self._blocks.add(block, self._age + uses)

    def remove(self, block: int) -> None:
        """A resting block is used again, or forgotten."""
        self._blocks.remove(block)

    def evict(self) -> int:
        """The block of the lowest rank."""
        block, self._age = self._blocks.pop()
        return block

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)
