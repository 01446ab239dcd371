"""Counts for how long API keys have used a resource lately: the next turn is that of the key with the least use."""

from __future__ import annotations

import math
from collections.abc import Callable

_HALF_LIFE = 10.0
"""Seconds after which half of a use is forgotten."""
_HEAVY = 3.0
"""Seconds of use, not forgotten, beyond which a key is heavy: it uses about a fifth of a resource all the time."""
_FORGOTTEN = 0.001
_FEW = 16
"""Entries that are kept without a look at whether they are still of use."""


class RecentUses:
    """The seconds for which keys have used something recently, as ranks.

    The rank of `s` seconds of use at the time `t` is log2(s) + t / _HALF_LIFE. Forgetting lowers all uses by the same
    factor, so that neither the ranks of keys nor their order change with time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ranks: dict[str, float] = {}
        self._most = _FEW

    def add(self, key: str, seconds: float) -> None:
        """Count `seconds` of use that end now."""
        self._ranks[key] = _sum(self._ranks.get(key, -math.inf), math.log2(seconds) + self._now)
        if len(self._ranks) > self._most:
            self._ranks = {each: rank for each, rank in self._ranks.items() if self._lasts(rank)}
            self._most = 2 * len(self._ranks) + _FEW

    def rank(self, key: str, more: float = 0.0) -> float:
        """Return the key's rank, with `more` seconds of use to come; minus infinity without use that is remembered."""
        rank = self._ranks.get(key, -math.inf)
        so_far = rank if self._lasts(rank) else -math.inf
        return _sum(so_far, math.log2(more) + self._now) if more else so_far

    def is_heavy(self, key: str) -> bool:
        """Return True if the key uses about a fifth of a resource all the time, or more."""
        return self.rank(key) > math.log2(_HEAVY) + self._now

    def _lasts(self, rank: float) -> bool:
        return rank > math.log2(_FORGOTTEN) + self._now

    @property
    def _now(self) -> float:
        return self._clock() / _HALF_LIFE


def _sum(first: float, second: float) -> float:
    """Return the rank of two uses together; `second` is of at least some use."""
    least, most = sorted((first, second))
    return most + math.log2(1.0 + 2.0 ** (least - most))
