"""Fair sharing of a few equal resources, such as text workers: API keys take turns, however many requests each has.

Where the times of use are given, the next turn is that of the key with the least recent use, including what its next
task may take: otherwise a key with a short task would wait for a long one of each other key. A turn takes about as
long whether ten keys or thousands wait.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from octavo_engine.recent_uses import RecentUses

T = TypeVar("T")
_FEW = 16
"""Former places in the queue that may be kept before unused ones are removed."""


class FairPool(Generic[T]):
    """A pool of `total` equal resources. While several keys exist, neither one nor all heavy ones hold all of them."""

    def __init__(
        self, total: int, several_keys: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._several_keys = total, several_keys
        self._free: list[T] = []
        self._held: Counter[str] = Counter()
        self._uses = RecentUses(clock)
        self._waiting: dict[str, OrderedDict[asyncio.Future[T], float]] = {}
        """The futures of each key's waiting requests, with the seconds that they may take."""
        self._places: dict[str, tuple[float, int]] = {}
        """The place of each waiting key: its rank in `_uses`, and a number that is higher for a later turn."""
        self._queue: list[tuple[float, int, str]] = []
        """A heap of these places with their keys, and of former places, which are left out when they come up."""
        self._number = 0

    async def acquire(self, key: str, seconds: float = 0.0) -> T:
        """Wait until it is this key's turn, and return a free resource, which is used for an estimate of `seconds`."""
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            self._waiting[key][turn] = seconds
        else:
            self._waiting[key] = OrderedDict({turn: seconds})
            self._place(key)
        self._hand_out()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(key, turn.result())
            else:
                self._forget(key, turn)
            raise

    def add(self, resource: T) -> None:
        """Add a resource that no key holds."""
        self._free.append(resource)
        self._hand_out()

    def release(self, key: str, resource: T, seconds: float = 0.0) -> None:
        """Return a resource that `key` held, and has used for some `seconds`."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]
        if seconds:
            self._uses.add(key, seconds)
            if key in self._waiting:
                self._place(key)
        self.add(resource)

    def _hand_out(self) -> None:
        while self._free and (key := self._next_key()) is not None:
            turn = next(iter(self._waiting[key]))
            self._forget(key, turn)
            if turn.cancelled():
                continue
            if key in self._waiting:
                self._place(key)
            self._held[key] += 1
            turn.set_result(self._free.pop())

    def _next_key(self) -> str | None:
        """Return the waiting key that has used least among those that may hold another resource, if there is one."""
        shared = self._several_keys() and self._total > 1
        most = self._total - 1 if shared else self._total
        full: list[tuple[float, int, str]] = []
        while (first := self._first()) is not None and self._held[first] >= most:
            full.append(heapq.heappop(self._queue))  # at most as many keys as there are resources
        for place in full:
            heapq.heappush(self._queue, place)
        if first is None or not shared or not self._uses.is_heavy(first):
            return first
        held_by_heavy = sum(held for key, held in self._held.items() if self._uses.is_heavy(key))
        return first if held_by_heavy < most else None

    def _first(self) -> str | None:
        """Return the key whose place is the first in the queue, without former places before it."""
        while self._queue and self._places.get(self._queue[0][2]) != self._queue[0][:2]:
            heapq.heappop(self._queue)
        return self._queue[0][2] if self._queue else None

    def _place(self, key: str) -> None:
        """Give a waiting key its place: by what it has used and may use, and behind all keys with as much."""
        self._number += 1
        seconds = next(iter(self._waiting[key].values()))
        self._places[key] = place = self._uses.rank(key, seconds), self._number
        heapq.heappush(self._queue, (*place, key))
        if len(self._queue) > 2 * len(self._places) + _FEW:
            self._queue = [(*place, each) for each, place in self._places.items()]
            heapq.heapify(self._queue)

    def _forget(self, key: str, turn: asyncio.Future[T]) -> None:
        """Remove a future from the queue, if it is still there: it has its turn, or is cancelled."""
        turns = self._waiting.get(key, OrderedDict())
        turns.pop(turn, None)
        if not turns:
            self._waiting.pop(key, None)
            self._places.pop(key, None)
