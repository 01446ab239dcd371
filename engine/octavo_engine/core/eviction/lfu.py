"""Least frequently used, with dynamic ageing (LFUDA: Arlitt, Cherkasova, Dilley, Friedrich, Jin, 1999).

A block's rank is its number of hits plus the rank of the block that was evicted last. Blocks that were popular long ago
thus fall behind those that are popular now, and cannot fill the cache forever.
"""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastFrequentlyUsed(EvictionPolicy):
    """Evicts the block with the fewest hits first."""

    def rank(self, uses: int, priority: int) -> float:
        return self.last_rank + uses
