# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Least important first: blocks stay the longer, the more important the requests that used them were.

Nothing ages: a priority is an order, no amount that time could be weighed against. --prefix-cache-ttl ends what is old.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.core.eviction.ranked import RankedBlocks


class LeastImportant:
    """Among blocks of the same importance the one that rested longest goes first; O(log n) a block."""

    def __init__(self) -> None:
        self._blocks = RankedBlocks()

    def rest(self, block: int, uses: int, priority: int) -> None:
        """A block is unused from now on."""
        self._blocks.add(block, -priority)  # a low number is an important request

    def remove(self, block: int) -> None:
        """A resting block is used again, or forgotten."""
        self._blocks.remove(block)

    def evict(self) -> int:
        """The least important block."""
        return self._blocks.pop()[0]

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)
