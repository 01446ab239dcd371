"""Least recently used: the block that has been unused for longest goes first."""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastRecentlyUsed(EvictionPolicy):
    """All blocks have the same rank."""

    def rank(self, uses: int, priority: int) -> float:
        return 0.0
