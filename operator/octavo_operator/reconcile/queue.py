"""The work queue: each key at most once in it, never worked on twice at the same time, retried with growing pauses."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
logger = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 300.0
_MOST_DOUBLINGS = 16  # far past the last pause: a power without bound would overflow a float after days


class WorkQueue(Generic[Key]):
    """Keys whose objects may have changed. After client-go's workqueue.

    A key added while it is worked on is worked on again afterwards; a key added many times meanwhile counts once.
    """

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting_since: dict[Key, float] = {}
        self._active: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._retries: dict[Key, asyncio.TimerHandle] = {}

    def add(self, key: Key) -> None:
        """Has `key` worked on soon."""
        if key in self._waiting_since:
            return
        self._waiting_since[key] = time.monotonic()
        if key not in self._active:
            self._ready.put_nowait(key)

    def oldest_wait_seconds(self) -> float:
        """How long the key at the head has waited: the measure of progress."""
        return max((time.monotonic() - since for since in self._waiting_since.values()), default=0.0)

    async def work(self, handle: Callable[[Key], Awaitable[None]]) -> None:
        """Works on keys, one after the other, for ever. Several of these may run side by side."""
        while True:
            key = await self._ready.get()
            self._waiting_since.pop(key, None)
            self._active.add(key)
            try:
                await handle(key)
            except Exception as error:  # noqa: BLE001 - the boundary: one key's failure is nobody else's
                self._retry(key, error)
            else:
                self._forget_failures(key)
            finally:
                self._active.discard(key)
                if key in self._waiting_since:
                    self._ready.put_nowait(key)

    def _retry(self, key: Key, error: Exception) -> None:
        failures = self._failures.get(key, 0)
        self._forget_failures(key)
        self._failures[key] = failures + 1
        pause = min(LAST_RETRY_SECONDS, FIRST_RETRY_SECONDS * 2 ** min(failures, _MOST_DOUBLINGS)) * random.uniform(
            0.8, 1.2
        )
        # A message of the API is expected trouble; anything else is a fault of ours and needs its traceback.
        logger.warning("%s: %s; next try in %.0f s", key, error, pause, exc_info=not isinstance(error, ExpectedError))
        self._retries[key] = asyncio.get_running_loop().call_later(pause, self.add, key)

    def _forget_failures(self, key: Key) -> None:
        self._failures.pop(key, None)
        if retry := self._retries.pop(key, None):
            retry.cancel()


class ExpectedError(Exception):
    """Something went wrong outside of the operator; trying again may help."""
