"""Least important first: blocks of more important requests stay longer.

Ranks do not change with age: priorities only order requests. --prefix-cache-ttl is the way to drop old blocks.
"""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastImportant(EvictionPolicy):
    """Evicts the block whose most important user has the highest priority number first; low numbers are important."""

    def rank(self, uses: int, priority: int) -> float:
        return -priority
