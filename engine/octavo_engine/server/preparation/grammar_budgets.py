"""Limits the CPU time for checking new grammars: each API key has a budget, which refills slowly.

A check takes up to a quarter of a second of CPU time, and compiling the grammar as much again, for which steps on CPUs
and the key's other requests wait. All amounts are shares of the time that one check may take (`most_seconds`).
"""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.server.admission.token_bucket import TokenBucket

_FULL, _FILL_SECONDS = 1.0, 10.0
"""The budget of a key that has sent no new grammars lately, for each text worker, and the seconds in which it refills.
On two cores, with two workers, checks of one key take a twentieth of a core: sixty usual schemas, then six a second."""
_LEAST = 1 / 16
"""The least share for which a check begins: most grammars take less, and no child process is started in vain."""


class GrammarBudgets:
    """What is left of each key's budget."""

    def __init__(self, clock: Callable[[], float], workers: int) -> None:
        self._clock, self._full = clock, _FULL * workers
        self._buckets: dict[str, TokenBucket] = {}
        """The budgets that are not full."""

    def share(self, key: str) -> float:
        """Return the share of the usual CPU time that checking a new grammar of this key may take now."""
        level = self._bucket(key).level
        return min(1.0, level) if level >= _LEAST else 0.0

    def take(self, key: str, share: float) -> None:
        """Take what checks took. Those that ran at the same time may make the level negative."""
        if share:
            self._buckets = {name: bucket for name, bucket in self._buckets.items() if not bucket.full}
            self._buckets.setdefault(key, self._bucket(key)).take(share)

    def seconds_left(self, key: str) -> float:
        """Return the seconds until a new grammar of this key may take the usual time again; 0 if it may now."""
        return self._bucket(key).seconds_until(1.0)

    def _bucket(self, key: str) -> TokenBucket:
        return self._buckets.get(key) or TokenBucket(self._clock, self._full, _FILL_SECONDS)
