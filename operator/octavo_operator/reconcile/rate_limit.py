"""Limits how often something is done for each key (a generic cell rate algorithm): a burst, then a steady pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")

_MOST_REMEMBERED = 10_000


class RateLimit(Generic[Key]):
    """Gives each key `burst` turns at once, and then one in `seconds`. `clock`: seconds of no particular origin."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._until: dict[Key, float] = {}

    def seconds_left(self, key: Key) -> float:
        """Return in how many seconds it is the key's turn; 0 or less: now."""
        return self._until.get(key, float("-inf")) - self._burst * self._seconds - self._clock()

    def note(self, key: Key) -> None:
        """Note that the key has had a turn."""
        now = self._clock()
        if len(self._until) >= _MOST_REMEMBERED:
            self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[key] = max(self._until.get(key, now), now) + self._seconds
