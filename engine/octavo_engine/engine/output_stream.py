"""The engine's outputs for some requests, in the order in which they come, for one reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from octavo_engine.core.step import RequestOutput
from octavo_engine.errors import EngineDeadError


class OutputStream:
    """The outputs of one or several requests until each has ended; an asynchronous iterator.

    The engine's client appends to it without waiting for the reader; until they are read, tokens are ids.
    """

    def __init__(self, request_ids: Iterable[str]) -> None:
        self.unfinished = set(request_ids)
        """Ids of the requests that have not ended."""
        self._queue: asyncio.Queue[RequestOutput | Exception] = asyncio.Queue()

    def put(self, output: RequestOutput) -> None:
        """Append an output of one of the requests."""
        if output.finish_reason is not None:
            self.unfinished.discard(output.request_id)
        self._queue.put_nowait(output)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the reader, unless all requests have ended.

        What the engine gave before it died is still read; for any other error the reader does not first have to read
        what waits, as a slow one would learn of the error too late.
        """
        if not self.unfinished:
            return
        while not isinstance(error, EngineDeadError) and not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(error)

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self.unfinished and self._queue.empty():
            raise StopAsyncIteration
        item = await self._queue.get()
        if isinstance(item, Exception):
            raise item
        return item
