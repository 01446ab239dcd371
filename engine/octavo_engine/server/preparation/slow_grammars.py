"""Which API keys have sent several grammars that took too long to compile: further new ones are rejected for a while.

Each such grammar costs a quarter of a second of CPU time, for which the steps of a model on CPUs wait.
"""

from __future__ import annotations

from collections.abc import Callable

_AT_ONCE = 2
"""The grammars a key may send in a row that take too long, before its new ones are rejected."""
_SECONDS_EACH = 5.0
"""Seconds after which one more may be compiled for each of them: a twentieth of a core at most."""


class SlowGrammars:
    """The grammars that took too long, by key."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._forgotten_at: dict[str, float] = {}
        """When the last of a key's grammars no longer counts; each counts for _SECONDS_EACH, one after another."""

    def add(self, key: str) -> None:
        """Note that a grammar of this key took too long."""
        now = self._clock()
        self._forgotten_at = {name: end for name, end in self._forgotten_at.items() if end > now}
        self._forgotten_at[key] = max(now, self._forgotten_at.get(key, now)) + _SECONDS_EACH

    def seconds_left(self, key: str) -> float:
        """Return the seconds until new grammars of this key are compiled again; 0 if they are now."""
        left = self._forgotten_at.get(key, 0.0) - self._clock() - (_AT_ONCE - 1) * _SECONDS_EACH
        return max(0.0, left)
