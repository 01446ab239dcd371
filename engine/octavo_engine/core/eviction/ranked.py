"""Resting blocks by rank: the smallest rank goes first, among equals the one that has rested longest."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

_SLACK = 64
"""Outdated heap entries that are not worth a clean-up."""


class RankedBlocks:
    """A heap whose removed entries stay until they surface or outnumber the rest; O(log n) a block."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, int, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._sequence = 0

    def add(self, block: int, rank: float) -> None:
        """A block rests with this rank."""
        self._sequence += 1
        entry = (rank, self._sequence, block)
        self._entries[block] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def remove(self, block: int) -> None:
        """A block rests no more."""
        del self._entries[block]

    def pop(self) -> tuple[int, float]:
        """The first block and its rank; it rests no more."""
        while True:
            entry = heapq.heappop(self._heap)
            rank, _, block = entry
            if self._entries.get(block) == entry:
                del self._entries[block]
                return block, rank

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)
