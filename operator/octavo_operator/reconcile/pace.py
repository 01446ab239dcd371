"""Limits how often something is done for each key (a generic cell rate algorithm): a burst, then a steady pace."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Pace(Generic[Key]):
    """For each key `burst` times at once, and then once in `seconds`. `clock`: seconds of no particular origin."""

    def __init__(self, burst: int, seconds: float, clock: Callable[[], float]) -> None:
        self._burst, self._seconds, self._clock = burst, seconds, clock
        self._until: OrderedDict[Key, float] = OrderedDict()
        """Until when each key's turns would take at the steady pace, the key that had one last at the end."""

    def seconds_left(self, key: Key) -> float:
        """Return in how many seconds it is the key's turn; 0 or less: now."""
        return self._until.get(key, float("-inf")) - (self._burst - 1) * self._seconds - self._clock()

    def note(self, key: Key) -> None:
        """Note that the key has had a turn."""
        now = self._clock()
        self._until[key] = max(self._until.get(key, now), now) + self._seconds
        self._until.move_to_end(key)
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
