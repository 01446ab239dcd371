"""Streams of server-sent events, each with one JSON object.

Comments keep a silent connection open. A stream that fails ends with an error event.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo_engine.server.connections.connection import abort_connection
from octavo_engine.server.connections.direct_send import direct_send_of
from octavo_engine.server.connections.disconnect import wait_for_disconnect
from octavo_engine.server.connections.full_response import READING_SECONDS
from octavo_engine.server.errors import APIError
from octavo_engine.server.run_until import run_until

PING_INTERVAL = 15.0
"""Seconds of silence after which a comment keeps proxies from closing the connection."""
STALL_TIMEOUT = 30.0
"""Seconds that a client may take to accept one event before it counts as gone."""
DONE = b"data: [DONE]\n\n"
_PING = b": ping\n\n"


def event(data: bytes) -> bytes:
    """Return an event with `data`, which is JSON without newlines."""
    return b"data: " + data + b"\n\n"


def named_event(name: str, data: bytes) -> bytes:
    """Return an event of the type `name` with `data`, which is JSON without newlines."""
    return b"event: " + name.encode() + b"\n" + event(data)


def error_event(error: APIError) -> bytes:
    """Return the last event of a stream that failed; no [DONE] follows."""
    return named_event("error", error.body())


class EventStream(Response):
    """Sends `events` inside of `owner`, which is left as soon as the client is gone or takes too long.

    A client has to take each event within STALL_TIMEOUT, and all of them until `deadline` (monotonic seconds) and
    READING_SECONDS: one that reads a few bytes now and then would never stall. Each event is made when the
    one before has been taken.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], owner: AbstractAsyncContextManager[object], deadline: float
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._owner = owner
        self._deadline = deadline
        self._last_sent = time.monotonic()
        self._sending_since: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run as an ASGI application."""
        async with self._owner, contextlib.aclosing(self._events):
            send_body = direct_send_of(scope)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            sending = asyncio.create_task(self._send_all(send_body))
            try:
                await run_until(sending, wait_for_disconnect(receive), self._watch(send_body))
            finally:
                if sending.cancelled():
                    abort_connection(scope)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send_all(self, send: Send) -> None:
        async for data in self._events:
            await self._send(send, data)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        self._sending_since = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending_since = None
        self._last_sent = time.monotonic()

    async def _watch(self, send: Send) -> None:
        """Send a comment after each long silence; return when the client has stopped reading."""
        last = self._deadline + READING_SECONDS
        while (now := time.monotonic()) < last:
            await asyncio.sleep(min(PING_INTERVAL / 4, STALL_TIMEOUT / 4, last - now))
            now = time.monotonic()
            if self._sending_since is not None:
                if now - self._sending_since > STALL_TIMEOUT:
                    return
            elif now - self._last_sent >= PING_INTERVAL:
                await self._send(send, _PING)
