"""Least frequently used, with dynamic ageing (LFUDA: Arlitt, Cherkasova, Dilley, Friedrich, Jin, 1999).

A block's rank is how often it was found, plus the rank of the last one that went. What was popular long ago thus falls
behind what is popular now, and cannot fill the cache forever.
"""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastFrequentlyUsed(EvictionPolicy):
    """The block that was found least often goes first."""

    def rank(self, uses: int, priority: int) -> float:
        return self.last_rank + uses
