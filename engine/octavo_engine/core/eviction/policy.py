"""The base of eviction policies: a rank for each block that is cached and that no request uses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

_COLD = float("-inf")


class EvictionPolicy(ABC):
    """The unused blocks by rank: the smallest rank is evicted first, among equals the block unused for longest."""

    def __init__(self) -> None:
        self.ranks: dict[int, float] = {}
        """The unused blocks, each with its rank."""
        self._blocks: dict[float, OrderedDict[int, None]] = {}
        """The blocks of each rank. There are few ranks, as blocks of equal use, or of equal importance, share one."""
        self.last_rank = 0.0  # rank of the block that was evicted last, cold ones aside

    @abstractmethod
    def rank(self, uses: int, priority: int) -> float:
        """Return the rank of a block with `uses` hits, whose most important user had the priority `priority`."""

    def release(self, block: int, uses: int, priority: int, *, cold: bool = False) -> None:
        """Note that a block is unused from now on. A `cold` one is evicted before all others."""
        rank = _COLD if cold else self.rank(uses, priority)
        self.ranks[block] = rank
        self._blocks.setdefault(rank, OrderedDict())[block] = None

    def remove(self, block: int) -> None:
        """Note that an unused block is used again, or leaves the cache."""
        rank = self.ranks.pop(block)
        del self._blocks[rank][block]
        if not self._blocks[rank]:
            del self._blocks[rank]

    def evict(self) -> int:
        """Remove the block with the smallest rank, and return it."""
        rank = min(self._blocks)
        block = next(iter(self._blocks[rank]))
        self.remove(block)
        if rank != _COLD:
            self.last_rank = rank
        return block
