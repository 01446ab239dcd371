"""Eviction policies, one a file: each chooses which cached block is evicted when a new one is needed."""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.core.eviction.lfu import LeastFrequentlyUsed
from octavo_engine.core.eviction.lru import LeastRecentlyUsed
from octavo_engine.core.eviction.policy import EvictionPolicy
from octavo_engine.core.eviction.priority import LeastImportant

POLICIES: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
    "priority": LeastImportant,
}
"""The policies by their names as values of --prefix-cache-policy."""
