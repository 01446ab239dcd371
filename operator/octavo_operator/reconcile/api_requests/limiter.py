"""Delays all requests while the API server says that it is overloaded, so that retries do not keep it so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

PAUSE_SECONDS = 1.0
"""The pause if the API server does not say how long."""
LONGEST_SECONDS = 60.0
"""The longest pause: what answers may be a proxy or a webhook that asks for a day."""
_OVERLOADED = (0, 429, 503)
"""Statuses that say something about the API server and not about the request; 0: it cannot be reached."""


class Limiter:
    """Delays all requests of a process but those for the Lease, which must not wait."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._until = float("-inf")

    async def wait(self) -> None:
        """Return once requests may be sent."""
        while (left := self._until - self._clock()) > 0:
            await self._sleep(left)

    def answered(self, status: int, retry_after: float | None) -> None:
        """Note that the API server refused a request; `retry_after`: the seconds that it asks clients to wait."""
        if status in _OVERLOADED:
            self._until = max(self._until, self._clock() + (PAUSE_SECONDS if retry_after is None else retry_after))


def retry_after_of(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, LONGEST_SECONDS at most.

    None where there is none, or a date, which the API server never sends.
    """
    text = headers.get("Retry-After", "")
    return min(float(text), LONGEST_SECONDS) if text.isascii() and text.isdigit() else None
