"""What eviction policies with a rank share: the smallest rank goes first, among equals the block unused for longest."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator

_SLACK = 64
"""Outdated heap entries that are not worth a clean-up."""


class RankedBlocks(ABC):
    """A heap whose removed entries stay until they surface or outnumber the rest; O(log n) a block."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[float, int, int]] = {}
        self._heap: list[tuple[float, int, int]] = []
        self._sequence = 0
        self.last_rank = 0.0
        """Of the block that was evicted last."""

    @abstractmethod
    def rank(self, uses: int, priority: int) -> float:
        """The rank of a block that was found `uses` times and whose most important user had `priority`."""

    def release(self, block: int, uses: int, priority: int) -> None:
        self._sequence += 1
        entry = (self.rank(uses, priority), self._sequence, block)
        self._entries[block] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)

    def remove(self, block: int) -> None:
        del self._entries[block]

    def evict(self) -> int:
        while True:
            entry = heapq.heappop(self._heap)
            self.last_rank, _, block = entry
            if self._entries.get(block) == entry:
                del self._entries[block]
                return block

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)
