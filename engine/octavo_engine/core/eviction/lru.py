"""Least recently used: the block that has been unused for longest is evicted first."""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastRecentlyUsed(EvictionPolicy):
    """Gives all blocks the same rank, so that the time since their last use decides."""

    def rank(self, uses: int, priority: int) -> float:
        return 0.0
