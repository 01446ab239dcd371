"""The state of the server before and after an attack, which shows requests and connections that were forgotten."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.server import Serving

_SECONDS = 8.0
"""The time in which the server has to be as before: it notices some clients that left only when it writes to them."""
_SPARE_FILES, _HONEST_REQUESTS = 8, 2
"""More open files, and requests in all, that are no sign of a leak: the honest tenant and its probes have some."""


@dataclass(frozen=True)
class State:
    """What the server has open."""

    files: int
    """Open files of the HTTP process, connections included."""
    requests: int
    """Requests that run or wait."""

    def exceeds(self, before: State) -> bool:
        """Return True if something is left that was not there before."""
        return self.files > before.files + _SPARE_FILES or self.requests > _HONEST_REQUESTS


async def state_of(serving: Serving) -> State:
    """Return the present state."""
    return await asyncio.to_thread(_read, serving)


async def settled(serving: Serving, before: State) -> State:
    """Return the state once it is as `before`, or after _SECONDS."""
    until = time.monotonic() + _SECONDS
    while (found := await state_of(serving)).exceeds(before) and time.monotonic() < until:
        await asyncio.sleep(0.2)
    return found


def _read(serving: Serving) -> State:
    requests = sum(sum(serving.metrics(f"octavo_requests_{state}").values()) for state in ("running", "waiting"))
    return State(serving.http.num_fds(), round(requests))
