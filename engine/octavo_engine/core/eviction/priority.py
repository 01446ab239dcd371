"""Least important first: blocks stay the longer, the more important the requests that used them were.

Nothing ages: a priority is an order, no amount that time could be weighed against. --prefix-cache-ttl ends what is old.
"""

from octavo_engine.core.eviction.policy import EvictionPolicy


class LeastImportant(EvictionPolicy):
    """The block whose most important user mattered least goes first; a low priority number is an important user."""

    def rank(self, uses: int, priority: int) -> float:
        return -priority
