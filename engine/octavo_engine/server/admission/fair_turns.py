"""Fair sharing of a few equal resources, such as text workers: API keys take turns, however many requests each has.

Where the times of use are given, the next turn is that of the key that has used least lately: otherwise a key with a
short task would wait for a long one of each other key.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_HALF_LIFE = 10.0
"""Seconds after which half of a use is forgotten."""
_HEAVY = 3.0
"""Seconds of use, not forgotten, beyond which a key is heavy: it uses about a fifth of a resource all the time."""
_FORGOTTEN = 0.001


class FairTurns(Generic[T]):
    """A pool of `total` equal resources. While several keys exist, neither one nor all heavy ones hold all of them."""

    def __init__(
        self, total: int, several_keys: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._several_keys, self._clock = total, several_keys, clock
        self._free: list[T] = []
        self._held: Counter[str] = Counter()
        self._used: dict[str, float] = {}
        """The seconds of each key's use that are not forgotten at the time `_used_at`."""
        self._used_at = clock()
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[T], None]] = OrderedDict()
        """The futures of each key's waiting requests; the first key is the one whose turn is next."""

    async def acquire(self, key: str) -> T:
        """Wait until it is this key's turn, and return a free resource."""
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, OrderedDict())[turn] = None
        self._hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(key, turn.result())
            else:
                self._forget(key, turn)
            raise

    def add(self, thing: T) -> None:
        """Add a resource that no key holds."""
        self._free.append(thing)
        self._hand_out()

    def release(self, key: str, thing: T, seconds: float = 0.0) -> None:
        """Return a resource that `key` held, and has used for some `seconds`."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if seconds:
            self._forget_uses()
            self._used[key] = self._used.get(key, 0.0) + seconds
        self.add(thing)

    def _hand_out(self) -> None:
        while self._free and (key := self._next_key()) is not None:
            turn = next(iter(self._waiting[key]))
            self._forget(key, turn)
            if turn.cancelled():
                continue
            if key in self._waiting:
                self._waiting.move_to_end(key)
            self._held[key] += 1
            turn.set_result(self._free.pop())

    def _next_key(self) -> str | None:
        shared = self._several_keys() and self._total > 1
        most = self._total - 1 if shared else self._total
        able = (key for key in self._waiting if self._held[key] < most)
        if not self._used:
            return next(able, None)
        self._forget_uses()
        heavy = {key for key, seconds in self._used.items() if seconds > _HEAVY}
        if shared and sum(self._held[key] for key in heavy) >= most:
            able = (key for key in self._waiting if self._held[key] < most and key not in heavy)
        return min(able, key=lambda key: self._used.get(key, 0.0), default=None)

    def _forget_uses(self) -> None:
        now = self._clock()
        left, self._used_at = 0.5 ** ((now - self._used_at) / _HALF_LIFE), now
        self._used = {key: kept for key, seconds in self._used.items() if (kept := seconds * left) > _FORGOTTEN}

    def _forget(self, key: str, turn: asyncio.Future[T]) -> None:
        """Remove a future from the queue, if it is still there: it has its turn, or is cancelled."""
        turns = self._waiting.get(key, OrderedDict())
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(key, None)
