"""Limits the rate of log lines that clients cause: a few at once, then some a second; the number of others is kept."""

from __future__ import annotations

import time
from collections.abc import Callable


class LineRate:
    """A token bucket of log lines."""

    def __init__(self, burst: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_second, self._clock = burst, per_second, clock
        self._level, self._filled_at = burst, clock()
        self._omitted = 0

    def admits(self) -> bool:
        """Return True if a line may be written now; otherwise it counts as omitted."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._per_second)
        self._filled_at = now
        if self._level < 1:
            self._omitted += 1
            return False
        self._level -= 1
        return True

    def take_omitted(self) -> int:
        """Return the number of lines that were omitted since the last call."""
        omitted, self._omitted = self._omitted, 0
        return omitted
