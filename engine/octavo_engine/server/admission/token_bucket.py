"""A token bucket: an amount that may be used up at once and refills evenly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_ROUNDING = 1e-6


@dataclass(slots=True)
class TokenBucket:
    """A bucket that is full at first. Its level may fall below zero, so that the rate is kept exactly over time."""

    clock: Callable[[], float]
    size: float | None = None
    """What a full bucket holds. None: no limit."""
    fill_seconds: float = 60.0
    """The seconds in which an empty bucket becomes full."""
    _level: float = 0.0
    _filled_at: float = 0.0

    def __post_init__(self) -> None:
        self._level, self._filled_at = self.size or 0.0, self.clock()

    def resize(self, size: float | None) -> None:
        """Change the size. A bucket that had no limit becomes full, else it keeps its level, up to the new size."""
        if size == self.size:
            return
        self._level = size or 0.0 if self.size is None else min(size or 0.0, self.level)
        self.size, self._filled_at = size, self.clock()

    def take(self, amount: float) -> None:
        """Take `amount`; the level may fall below zero."""
        if self.size is not None:
            self._level = self.level - amount

    def seconds_until(self, level: float) -> float:
        """Return the seconds until the bucket holds `level`; 0 if it does."""
        if self.size is None:
            return 0.0
        missing = level - self.level
        return missing / self.size * self.fill_seconds if missing > _ROUNDING else 0.0

    @property
    def full(self) -> bool:
        """True if the bucket is full, as a new one is."""
        return self.size is None or self.level >= self.size

    @property
    def level(self) -> float:
        """What the bucket holds now; 0 if there is no limit."""
        if self.size is None:
            return 0.0
        now = self.clock()
        gained = (now - self._filled_at) / self.fill_seconds * self.size
        self._level, self._filled_at = min(self.size, self._level + gained), now
        return self._level
