"""Admission: what waits is bounded, and who is turned away learns when to come back.

Counted are requests that were accepted and have not begun to answer, less those that the engine is already reading.
What has begun, preempted requests included, is never counted: accepted work is not pushed out by new work.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_engine.core.step import SchedulerStats
from octavo_engine.server.metrics import Rejection
from octavo_engine.server.openai.errors import APIError, unavailable

_RATE_WINDOW = 128


@dataclass(slots=True, eq=False)
class Ticket:
    """One HTTP request's place: how many of its sequences wait, and with how many prompt tokens each."""

    admission: Admission
    waiting: int
    tokens_each: int = 0
    begun: int = 0

    def add_tokens(self, tokens: int) -> None:
        """The prompt tokens, all sequences together, once they are counted; APIError 503 if they are too many."""
        self.admission.check_tokens(tokens)
        self.tokens_each = tokens // self.waiting
        self.admission.waiting_tokens += self.tokens_each * self.waiting

    def begin(self) -> None:
        """One of the sequences has given its first token."""
        self.admission.began()
        self._leave_queue(1)
        self.begun += 1
        self.admission.begun += 1

    def end(self, begun: bool) -> None:
        """One of the sequences has ended; `begun` says whether it had given its first token."""
        if begun:
            self.begun -= 1
            self.admission.begun -= 1
        else:
            self._leave_queue(1)

    def leave(self) -> None:
        """The request has ended, whatever way, and with it all its sequences. May be called more than once."""
        self._leave_queue(self.waiting)
        self.admission.begun -= self.begun
        self.begun = 0

    def _leave_queue(self, sequences: int) -> None:
        self.waiting -= sequences
        self.admission.waiting -= sequences
        self.admission.waiting_tokens -= sequences * self.tokens_each


@dataclass(slots=True)
class Admission:
    """--max-queued-requests and --max-queued-tokens, over what this process knows."""

    max_requests: int
    max_tokens: int
    stats: Callable[[], SchedulerStats]
    seats: Callable[[], int]
    """--max-num-seqs as the engine has it."""
    clock: Callable[[], float] = time.monotonic
    waiting: int = 0
    """Sequences that were accepted and have not begun to answer."""
    waiting_tokens: int = 0
    begun: int = 0
    """Sequences that have begun to answer and have not ended."""
    _begun_at: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_WINDOW))

    @property
    def queued(self) -> int:
        """Sequences that wait for a seat."""
        reading = max(0, self.stats().running - self.begun)
        return max(0, self.waiting - reading)

    def enter(self, sequences: int) -> Ticket:
        """A place for a request of so many sequences; APIError 503 if too many wait already.

        One that is larger than the queue and all seats together is welcome when none waits and there is any room.
        """
        stats = self.stats()
        free = max(0, self.seats() - stats.running) if stats.waiting == 0 else 0
        room = self.max_requests + free - self.queued
        alone = self.queued == 0 and sequences > self.max_requests + self.seats()
        if room < (1 if alone else sequences):
            raise self._full(
                "queued_requests",
                f"{self.queued} requests wait already and this one has {sequences} (--max-queued-requests "
                f"{self.max_requests})",
            )
        self.waiting += sequences
        return Ticket(self, sequences)

    def check_tokens(self, tokens: int) -> None:
        """APIError 503 if the prompts that wait are too long together; one alone is never too long here."""
        if self.waiting_tokens and self.waiting_tokens + tokens > self.max_tokens:
            raise self._full("queued_tokens", f"{self.waiting_tokens} prompt tokens wait already (--max-queued-tokens)")

    def began(self) -> None:
        """Remember the rate at which requests leave the queue."""
        self._begun_at.append(self.clock())

    def retry_after(self) -> int:
        """Seconds until the queue is likely to have moved: what waits over the recent rate, spread by chance."""
        if len(self._begun_at) < 2 or (span := self.clock() - self._begun_at[0]) <= 0:
            return random.randint(1, 3)
        seconds = self.queued / (len(self._begun_at) / span)
        return max(1, min(60, math.ceil(seconds * random.uniform(1.0, 1.2))))

    def _full(self, reason: Rejection, detail: str) -> OverloadedError:
        return OverloadedError(reason, detail, self.retry_after())


class OverloadedError(APIError):
    """503: we are full; `reason` is a label of octavo_requests_rejected_total."""

    def __init__(self, reason: Rejection, detail: str, retry_after: int) -> None:
        error = unavailable(f"the server is full: {detail}; try again", "server_overloaded", retry_after)
        super().__init__(503, str(error), code=error.detail.code, headers=error.headers)
        self.reason = reason
