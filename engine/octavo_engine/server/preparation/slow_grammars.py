"""Which API keys have sent a grammar that took too long to compile: further new ones are rejected for a while.

Each such grammar costs a quarter of a second of CPU time, for which steps on CPUs and the key's other requests wait.
"""

from __future__ import annotations

from collections.abc import Callable

_SECONDS = 5.0
"""How long a key pauses after a grammar that takes too long: so they take a twentieth of a core for each worker."""


class SlowGrammars:
    """The keys whose new grammars are not compiled now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paused_until: dict[str, float] = {}

    def add(self, key: str) -> None:
        """Note that a grammar of this key took too long."""
        now = self._clock()
        self._paused_until = {name: end for name, end in self._paused_until.items() if end > now}
        self._paused_until[key] = now + _SECONDS

    def seconds_left(self, key: str) -> float:
        """Return the seconds until new grammars of this key are compiled again; 0 if they are now."""
        return max(0.0, self._paused_until.get(key, 0.0) - self._clock())
