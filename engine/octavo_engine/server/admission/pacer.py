"""Pacing: few things of one kind happen in one iteration of the event loop, so that streams go on beside them."""

from __future__ import annotations

import asyncio

from octavo_engine.server.admission.auth import Key
from octavo_engine.server.admission.fair_pool import FairPool


class Pacer:
    """Lets at most `most` things happen in one iteration of the event loop; API keys take turns."""

    def __init__(self, most: int) -> None:
        self._pool: FairPool[None] = FairPool(most, lambda: False)
        for _ in range(most):
            self._pool.add(None)

    async def wait(self, key: Key) -> None:
        """Wait until something of this key may happen."""
        await self._pool.acquire(key.name)
        asyncio.get_running_loop().call_soon(self._pool.release, key.name, None)
