# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Least recently used: the block that has been unused for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class LeastRecentlyUsed:
    """An EvictionPolicy that does everything in O(1)."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def release(self, block: int, uses: int, priority: int) -> None:
        self._blocks[block] = None

    def remove(self, block: int) -> None:
        del self._blocks[block]

    def evict(self) -> int:
        return self._blocks.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)
