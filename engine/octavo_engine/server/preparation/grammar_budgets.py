"""Limits the CPU time for checking new grammars: each API key has a budget, which refills slowly.

A check takes up to a quarter of a second of CPU time, and compiling the grammar as much again, for which steps on CPUs
and the key's other requests wait. All amounts are shares of the time that one check may take (`most_seconds`).
"""

from __future__ import annotations

from collections.abc import Callable

_FULL, _PER_SECOND = 1.0, 0.1
"""The budget of a key that has sent no new grammars lately, and how fast it refills a second, for each text worker. On
two cores, with two workers, checks of one key take a twentieth of a core: sixty usual schemas, then six a second."""
_LEAST = 1 / 16
"""The least share for which a check begins: most grammars take less, and no child process is started in vain."""


class GrammarBudgets:
    """What is left of each key's budget."""

    def __init__(self, clock: Callable[[], float], workers: int) -> None:
        self._clock = clock
        self._full, self._per_second = _FULL * workers, _PER_SECOND * workers
        self._levels: dict[str, tuple[float, float]] = {}
        """For each key whose budget was not full what was left, and when."""

    def share(self, key: str) -> float:
        """Return the share of the usual CPU time that checking a new grammar of this key may take now."""
        level = self._level(key)
        return min(1.0, level) if level >= _LEAST else 0.0

    def take(self, key: str, share: float) -> None:
        """Take what checks took. Those that ran at the same time may make the level negative."""
        if share:
            self._levels = {name: noted for name, noted in self._levels.items() if self._level(name) < self._full}
            self._levels[key] = self._level(key) - share, self._clock()

    def seconds_left(self, key: str) -> float:
        """Return the seconds until a new grammar of this key may take the usual time again; 0 if it may now."""
        return max(0.0, (1.0 - self._level(key)) / self._per_second)

    def _level(self, key: str) -> float:
        level, noted = self._levels.get(key, (self._full, 0.0))
        return min(self._full, level + (self._clock() - noted) * self._per_second)
