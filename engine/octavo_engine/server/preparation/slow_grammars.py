"""Which API keys have sent grammars that took too long to compile: new ones of theirs get less CPU time for a while.

Each such grammar costs a quarter of a second of CPU time, for which steps on CPUs and the key's other requests wait.
"""

from __future__ import annotations

from collections.abc import Callable

_SECONDS = 5.0
"""How long a grammar that takes too long counts: so those of a key take about a twentieth of a core."""
_SHARES = (1.0, 0.125, 0.0)
"""The share of the usual CPU time for a new grammar: without slow ones, after the first, and after a second. An eighth
is enough for most schemas, and to find what is wrong with a grammar that cannot be compiled."""


class SlowGrammars:
    """How many slow grammars each key has sent lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._noted: dict[str, tuple[int, float]] = {}
        """For each key with slow grammars their number, and when they are forgotten."""

    def add(self, key: str) -> None:
        """Note that a new grammar of this key took longer than it may."""
        now = self._clock()
        self._noted = {name: (count, end) for name, (count, end) in self._noted.items() if end > now}
        count, _ = self._noted.get(key, (0, 0.0))
        self._noted[key] = min(count + 1, len(_SHARES) - 1), now + _SECONDS

    def share(self, key: str) -> float:
        """Return the share of the usual CPU time that a new grammar of this key may take."""
        count, end = self._noted.get(key, (0, 0.0))
        return _SHARES[count] if end > self._clock() else _SHARES[0]

    def seconds_left(self, key: str) -> float:
        """Return the seconds until new grammars of this key may take the usual time again; 0 if they may now."""
        return max(0.0, self._noted.get(key, (0, 0.0))[1] - self._clock())
