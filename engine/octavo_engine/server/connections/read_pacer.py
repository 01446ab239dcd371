"""Limits how long one iteration of the event loop parses what clients have sent, and ends connections of late ones.

A head takes up to 5 ms to parse and the chunks of one read up to 13 ms. If 1,500 clients sent them at the same moment,
the loop would do nothing else for seconds, before any request is counted.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from octavo_engine.server.connections.fair_queue import FairQueue

_SECONDS = 0.004
"""The time after which an iteration does nothing further of this kind."""


class ReadPacer:
    """The turns of all connections of one event loop: API keys take turns if there is more than fits an iteration."""

    def __init__(self) -> None:
        self._waiting: FairQueue[Callable[[], None]] = FairQueue(sys.maxsize)
        """What waits for its turn. A connection waits with few things, so that their number is limited as well."""
        self._seconds = 0.0
        """How long this iteration has been at work so far."""
        self._counting = False

    def run(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None], owner: Callable[[], str]) -> bool:
        """Call `act` if this iteration has time for it, else in a later one; return whether it was called now.

        `owner` returns the name of the API key whose turn `act` has to wait for. It is not called if `act` need not.
        """
        if self._waiting or self._seconds >= _SECONDS:
            self._waiting.add(owner(), act)
            return False
        self._run(loop, act)
        return True

    def _run(self, loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
        """Call `act`, and count how long it takes."""
        if not self._counting:
            self._counting = True
            loop.call_soon(self._next_iteration, loop)
        began = time.monotonic()
        try:
            act()
        finally:
            self._seconds += time.monotonic() - began

    def _next_iteration(self, loop: asyncio.AbstractEventLoop) -> None:
        self._counting, self._seconds = False, 0.0
        while self._waiting and self._seconds < _SECONDS:
            self._run(loop, self._waiting.take())
