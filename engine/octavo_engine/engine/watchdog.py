"""Distinguishes a busy engine from a stuck one: the loop must answer pings within the time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Watchdog:
    """Tracks the one unanswered ping and when it was sent. A step may take long; only a finished step answers."""

    timeout: float
    clock: Callable[[], float] = time.monotonic
    _sequence: int = 0
    _unanswered_since: float | None = None

    def next_ping(self) -> int | None:
        """Return the number of the ping to send now; None while an earlier one is unanswered."""
        if self._unanswered_since is not None:
            return None
        self._sequence += 1
        self._unanswered_since = self.clock()
        return self._sequence

    def answer(self, sequence: int) -> None:
        """Note that the loop answered the ping `sequence`."""
        if sequence == self._sequence:
            self._unanswered_since = None

    async def sleep(self, seconds: float) -> None:
        """Sleep; if that takes longer than `seconds`, the excess does not count as silence of the loop.

        This process did not run then and could read no answer. So an engine outlives a pod that is frozen or a machine
        that is paused, where both processes stand still.
        """
        began = self.clock()
        await asyncio.sleep(seconds)
        if self._unanswered_since is not None:
            self._unanswered_since += max(0.0, self.clock() - began - seconds)

    @property
    def silence(self) -> float:
        """Seconds since the oldest unanswered ping was sent, while this process ran; 0 if every ping was answered."""
        since = self._unanswered_since  # read once: probes read it in another thread, and the answer may come meanwhile
        return 0.0 if since is None else self.clock() - since

    @property
    def stalled(self) -> bool:
        """True if the loop has been silent for longer than `timeout`."""
        return self.silence > self.timeout
