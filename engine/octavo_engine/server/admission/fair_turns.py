"""Fair sharing of a few equal resources, such as text workers: API keys take turns, however many requests each has."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairTurns(Generic[T]):
    """A pool of `total` equal resources. While several keys exist, no key holds all of them at once."""

    def __init__(self, total: int, several_keys: Callable[[], bool]) -> None:
        self._total, self._several_keys = total, several_keys
        self._free: list[T] = []
        self._held: Counter[str] = Counter()
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

    def release(self, key: str, thing: T) -> None:
        """Return a resource that `key` held."""
        self.drop(key)
        self.add(thing)

    def drop(self, key: str) -> None:
        """Note that `key` no longer holds a resource, which does not come back."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]

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
        most = self._total - 1 if self._several_keys() and self._total > 1 else self._total
        return next((key for key in self._waiting if self._held[key] < most), None)

    def _forget(self, key: str, turn: asyncio.Future[T]) -> None:
        """Remove a future from the queue, if it is still there: it has its turn, or is cancelled."""
        turns = self._waiting.get(key, OrderedDict())
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(key, None)
