"""The work queue: each key at most once in it, never worked on twice at the same time, retried with growing pauses."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from octavo_operator.reconcile.rate_limit import RateLimit

Key = TypeVar("Key")
logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0
_MOST_DOUBLINGS = 16  # far past the last pause: a power without bound would overflow a float after days
_URGENT, _USUAL = 0, 1
SLOW_SECONDS = 4.0
"""An LLMService whose work takes longer is slow, and so is its group for a while: something that only it uses hangs.

Less than one write may take that hangs: it has the time that is left of the lease, 5 s at least where the last renewal
took as long as it may.
"""
_SLOW_MEMORY_SECONDS = 300.0
BURST, PACE_SECONDS = 20, 1.0
"""A key is worked on so often at once, and then once in so many seconds: another client may change an object again and
again, and each change would be answered with requests, and with writes where one is refused.
"""


@dataclass(frozen=True)
class _Waiting:
    since: float
    lane: int


@dataclass(frozen=True)
class _Failing:
    times: int = 0
    message: str = ""


class WorkQueue(Generic[Key]):
    """Keys whose objects may have changed. After client-go's workqueue, with a second lane for what is urgent.

    A key added while it is worked on is worked on again afterwards; a key added many times meanwhile counts once.
    `observer` is called after each piece of work with its seconds and what it failed with (None: nothing). Waiting and
    working are measured by `clock`, in seconds. Keys of slow groups (see SLOW_SECONDS; `group_of` says which group a
    key is of) get half of the workers at most, so that others need not wait for them.
    """

    def __init__(
        self,
        observer: Callable[[float, Exception | None], object] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
        group_of: Callable[[Key], Hashable] = lambda _: None,
    ) -> None:
        self._group_of = group_of
        self._slow: dict[Hashable, float] = {}
        self._parked: deque[Key] = deque()
        self._ready: asyncio.PriorityQueue[tuple[int, int, Any]] = asyncio.PriorityQueue()
        self._sequence = 0
        self._waiting: dict[Key, _Waiting] = {}
        self._active: dict[Key, float] = {}
        self._failures: dict[Key, _Failing] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._rate_limit = RateLimit[Key](BURST, PACE_SECONDS, clock)
        self._workers = 0
        self._clock = clock
        self._last_finished = clock()
        self._observer = observer

    def __len__(self) -> int:
        """Return how many keys wait for a worker."""
        return len(self._waiting)

    def add(self, key: Key, urgent: bool = False) -> None:
        """Queue `key`; an `urgent` key comes before all others."""
        lane, known = (_URGENT if urgent else _USUAL), self._waiting.get(key)
        if known and known.lane <= lane:
            return
        self._waiting[key] = _Waiting(known.since if known else self._clock(), lane)
        if key not in self._active:
            self._put(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Queue `key` in `seconds`, unless it is queued sooner; the latest call replaces earlier ones."""
        self._cancel_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.add, key)

    def clear(self) -> None:
        """Forget all keys, their timers and failures. To be called while no worker runs."""
        for key in list(self._timers):
            self._cancel_timer(key)
        self._waiting.clear()
        self._failures.clear()
        self._parked.clear()
        while not self._ready.empty():
            self._ready.get_nowait()

    def oldest_wait_seconds(self) -> float:
        """Return how long the oldest key has waited or been worked on, the backlog. 0 while no worker runs."""
        return self._since([*(waiting.since for waiting in self._waiting.values()), *self._active.values()])

    def stalled_seconds(self) -> float:
        """Return for how long no key was finished though some wait. 0 while no worker runs.

        However many wait, this is short as long as workers finish keys.
        """
        oldest = min((waiting.since for waiting in self._waiting.values()), default=None)
        return 0.0 if oldest is None else self._since([max(oldest, self._last_finished)])

    def longest_work_seconds(self) -> float:
        """Return the longest time that a worker has spent on its present key."""
        return self._since([*self._active.values()])

    def _since(self, moments: Sequence[float]) -> float:
        return self._clock() - min(moments) if moments and self._workers else 0.0

    async def work(self, handle: Callable[[Key], Awaitable[float | None]]) -> None:
        """Work on keys, one after the other, forever. Several of these may run side by side.

        `handle` returns after how many seconds it wants to see the key again though nothing changes; None: never.
        """
        if not self._workers:  # the first worker: keys that waited before it started do not count as stalled
            now = self._clock()
            self._waiting = {key: _Waiting(now, waiting.lane) for key, waiting in self._waiting.items()}
        self._workers += 1
        try:
            while True:
                _, _, key = await self._ready.get()
                if key not in self._waiting or key in self._active:  # it was taken earlier, through the urgent lane
                    continue
                if (pause := self._rate_limit.seconds_left(key)) > 0:
                    asyncio.get_running_loop().call_later(pause, self._put_if_waiting, key)
                elif self._is_slow(key) and sum(map(self._is_slow, self._active)) >= max(1, self._workers // 2):
                    self._parked.append(key)
                else:
                    await self._work_on(key, handle)
        finally:
            self._workers -= 1

    async def _work_on(self, key: Key, handle: Callable[[Key], Awaitable[float | None]]) -> None:
        del self._waiting[key]
        self._rate_limit.note(key)
        early = self._cancel_timer(key)
        self._active[key] = started = self._clock()
        failed: Exception | None = None
        try:
            again = await handle(key)
        except Exception as error:  # noqa: BLE001 - the boundary: a failure affects one key only
            failed = error
            self._retry(key, error, early)
        else:
            self._failures.pop(key, None)
            if again is not None:
                self.add_after(key, again)
        finally:
            del self._active[key]
            if self._clock() - started >= SLOW_SECONDS:
                self._note_slow(self._group_of(key))
            if key in self._waiting:
                self._put(key)
            while self._parked:  # there may be room for them now
                self._put_if_waiting(self._parked.popleft())
        self._last_finished = self._clock()
        self._observer(self._last_finished - started, failed)

    def _note_slow(self, group: Hashable) -> None:
        now = self._clock()
        self._slow = {each: when for each, when in self._slow.items() if now - when < _SLOW_MEMORY_SECONDS}
        self._slow[group] = now

    def _is_slow(self, key: Key) -> bool:
        now, group = self._clock(), self._group_of(key)
        if group is None:
            return False
        if now - self._slow.get(group, float("-inf")) < _SLOW_MEMORY_SECONDS:
            return True
        hanging = (each for each, since in self._active.items() if now - since >= SLOW_SECONDS)
        return any(self._group_of(each) == group for each in hanging)

    def _put_if_waiting(self, key: Key) -> None:
        if key in self._waiting:
            self._put(key)

    def _put(self, key: Key) -> None:
        self._sequence += 1
        self._ready.put_nowait((self._waiting[key].lane, self._sequence, key))

    def _retry(self, key: Key, error: Exception, early: bool) -> None:
        before = self._failures.get(key, _Failing())
        # An event that came before the pause was over says nothing about the problem.
        times = before.times if early and before.times else before.times + 1
        self._failures[key] = failing = _Failing(times, str(error))
        pause = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(times - 1, _MOST_DOUBLINGS))
        pause *= random.uniform(0.8, 1.2)
        if isinstance(error, ExpectedError) and error.within is not None:
            pause = min(pause, error.within)
        if isinstance(error, ExpectedError) and error.at_least is not None:
            pause = max(pause, error.at_least)
        # A message of the API is an expected problem; anything else is a fault of ours and needs its traceback.
        expected = isinstance(error, ExpectedError)
        level = logging.DEBUG if expected and failing == before else logging.WARNING
        logger.log(level, "%s: %s; retrying in %.0f s", key, error, pause, exc_info=not expected)
        self.add_after(key, pause)

    def _cancel_timer(self, key: Key) -> bool:
        """Cancel the key's timer; return True if it was still to come."""
        timer = self._timers.pop(key, None)
        if timer is None:
            return False
        timer.cancel()
        return timer.when() > asyncio.get_running_loop().time()


class ExpectedError(Exception):
    """Something went wrong outside of the operator; trying again may help.

    `within`: after how many seconds at the latest, since something else is due by then; None: nothing is. `at_least`:
    after how many seconds at the earliest, as the API server asked; None: it did not.
    """

    within: float | None = None
    at_least: float | None = None
