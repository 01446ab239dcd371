"""Delays all requests while the API server says that it is overloaded, so that retries do not keep it so.

What answers may also be a proxy or a webhook that refuses the requests for one object, and asks for minutes: these are
then not sent for as long as it asks, and others wait a moment at most.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

PAUSE_SECONDS = 1.0
"""The pause if the API server does not say how long."""
LONGEST_SECONDS = 60.0
"""The longest pause of one request: what answers may ask for a day."""
OTHERS_SECONDS = 10.0
"""The longest pause of all others after one refusal. An API server that is still overloaded then refuses one of these
too, and they wait again.
"""
_OVERLOADED = (0, 429, 503)
"""Statuses that say something about the API server and not about the request; 0: it cannot be reached."""
Request = tuple[str, str]
"""The method and the path of a request."""


@dataclass(frozen=True)
class _Refusal:
    until: float
    """When the request may be sent again."""
    surplus: int
    """How many more requests had been answered than refused when this one was."""
    message: str


class Limiter:
    """Delays all requests of a process but those for the Lease, which must not wait."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._until = float("-inf")
        self._refusals: dict[Request, _Refusal] = {}
        self._surplus = 0

    async def wait(self) -> None:
        """Return once requests may be sent."""
        while (left := self._until - self._clock()) > 0:
            await self._sleep(left)

    def held_back(self, request: Request) -> tuple[float, str] | None:
        """Return for how many seconds this request is not to be sent, though others may be, and what refused it."""
        refusal = self._refusals.get(request)
        left = refusal.until - self._clock() if refusal else 0.0
        return (left, refusal.message) if refusal and left > 0 else None

    def answered(self, request: Request, status: int, retry_after: float | None = None, message: str = "") -> None:
        """Note the status of an answer; `retry_after`: the seconds that the API server asks the client to wait.

        A request that is refused again, while at least as many were answered as refused, is refused for its own sake:
        it holds back no other.
        """
        if status not in _OVERLOADED:
            self._surplus += 1
            self._refusals.pop(request, None)
            return
        self._surplus -= 1
        now, before = self._clock(), self._refusals.get(request)
        self._forget_old(now)
        self._refusals[request] = _Refusal(now + (retry_after or 0.0), self._surplus, message)
        if before is None or self._surplus < before.surplus:
            pause = PAUSE_SECONDS if retry_after is None else min(retry_after, OTHERS_SECONDS)
            self._until = max(self._until, now + pause)

    def _forget_old(self, now: float) -> None:
        """Forget requests that were not sent again in time, for example since their object was deleted."""
        since = now - LONGEST_SECONDS
        self._refusals = {request: each for request, each in self._refusals.items() if each.until > since}


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, LONGEST_SECONDS at most.

    None where there is none, or a date, which the API server never sends.
    """
    text = headers.get("Retry-After", "")
    return min(float(text), LONGEST_SECONDS) if text.isascii() and text.isdigit() else None
