"""One connection of a client: uvicorn's, with the times and the letter of the protocol that clients have to keep."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import h11
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from octavo_engine.server.errors import APIError
from octavo_engine.server.strict_http import StrictBuffer

log = logging.getLogger("octavo.connections")

HEAD_SECONDS = 10.0
"""The time in which a request's headers must be complete, from the connection's first moment or their first byte."""
STALL_SECONDS = 30.0
"""The time in which a client must read what waits for it."""
_SEND_BUFFER = 16 << 10
"""Bytes of an answer that may wait for a client in this process; more is not even written."""
_READ_AHEAD = 64 << 10
"""Bytes of requests that may wait here until the one before them is answered; further ones stay with the client."""
_REST_SECONDS = 5.0
"""The time in which the rest of a body must arrive if its request has been answered already."""
_LINGER_BYTES, _LINGER_SECONDS = 32 << 20, 3.0
"""The most bytes, and the longest time, that are read and dropped after a request that is not HTTP: a connection that
is closed while bytes of its client are unread is reset, and the client may lose the answer."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_CHECK, _LAST_CHECK = 0.05, 5.0
"""Seconds between two looks whether a client that sends nothing more is still there; each is twice the last one."""


class ServerConnection(h11.Connection):
    """h11's connection, which writes a piece of a body without a walk through its tables: a piece changes no state.

    A stream has a piece for each token, and the walk takes a seventh of a token's CPU time.
    """

    def send(self, event: Any) -> Any:
        """Return the bytes of an event."""
        if type(event) is not h11.Data or self.our_state is not h11.SEND_BODY or self._writer is None:
            return super().send(event)
        written: list[bytes] = []
        self._writer(event, written.append)
        return b"".join(written)


class PipelineFlow(FlowControl):
    """uvicorn's flow control, which reads on whenever a request waits for its client, whatever came behind it already.

    Without a bound a client that sends request after request, and reads slowly, would have all of them in memory here.
    """

    def __init__(self, transport: asyncio.Transport, http: h11.Connection) -> None:
        super().__init__(transport)
        self._http = http

    def resume_reading(self) -> None:
        """Read on, unless many bytes of later requests wait already."""
        if self._http.their_state is not h11.DONE or len(self._http._receive_buffer) < _READ_AHEAD:
            super().resume_reading()


class ClientConnection(H11Protocol):
    """uvicorn's protocol over h11, which has no time limit but that of an idle connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = ServerConnection(h11.SERVER, self.conn._max_incomplete_event_size)
        self.conn._receive_buffer = StrictBuffer()
        self.app_state = {**self.app_state, "connection": self}
        self._timer: asyncio.TimerHandle | None = None
        """The timer for the client to send."""
        self._stall: asyncio.TimerHandle | None = None
        """The timer for the client to read."""
        self._check: asyncio.TimerHandle | None = None
        """The timer for the check whether a client that sends nothing more is still there."""
        self._half_closed = False
        """Whether the client has closed its half of the connection while its answers are still to come."""
        self._refused = False
        """Whether the client sent something other than HTTP and got an error: all further input is dropped."""
        self._forgotten = 0
        self.idle_since = 0.0
        """On the monotonic clock: when it was opened, or its last answer ended."""

    @property
    def idle(self) -> bool:
        """True if no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def unread(self) -> bool:
        """True if a part of an answer that has begun waits here until the client has read what came before."""
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        return begun or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin: the first request's headers have to come."""
        super().connection_made(transport)
        self.flow = PipelineFlow(transport, self.conn)
        transport.set_write_buffer_limits(high=_SEND_BUFFER)
        self.idle_since = time.monotonic()
        self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client: further bytes of a head do not give it more time."""
        if self._refused:
            self._forget(data)
            return
        waited = self.conn.their_state is h11.IDLE
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self.conn.their_state is not h11.IDLE:
            if waited or not self.idle:  # or the rest of an answered request came together with the next one
                self._expect(None)
        elif not waited:
            self._wait_for_next()
        elif self._timer is None:
            self._expect(HEAD_SECONDS)

    def handle_events(self) -> None:
        """Take in what has come. An error of ours ends this connection, and is no way to fill the log."""
        try:
            super().handle_events()
        except Exception as error:  # noqa: BLE001
            log.warning("a connection was closed by an error of the server: %r", error)
            self.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. True keeps the connection: it has sent a whole request and may wait for it.

        One that has closed its connection looks the same until something is sent to it, so that one that ends in the
        middle of an answer has left.
        """
        if self._half_closed:
            return True
        whole = not (self._refused or self.idle or self.cycle.more_body or self.cycle.response_started)
        if whole and not self.transport.is_closing() and self.scope["http_version"] == "1.1":
            self._half_closed = True
            self._look_for_client(_FIRST_CHECK)
        return self._half_closed

    def _look_for_client(self, pause: float) -> None:
        """Send what clients have to ignore, again and again until the answer begins: it ends what has no reader."""
        if self.transport.is_closing() or self.idle:
            return
        if not self.cycle.response_started:
            self.transport.write(_CONTINUE)
        self._check = self.loop.call_later(pause, self._look_for_client, min(2 * pause, _LAST_CHECK))

    def _forget(self, data: bytes) -> None:
        self._forgotten += len(data)
        if self._forgotten > _LINGER_BYTES:
            self.abort()

    def on_response_complete(self) -> None:
        """A request has been answered, perhaps before all of its body has come."""
        super().on_response_complete()
        if self._half_closed and self.idle:
            self.transport.close()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # a request has perhaps been taken out of those that waited
        self.idle_since = time.monotonic()
        if self.transport.is_closing():
            self.pause_writing()
        elif self.conn.their_state is h11.IDLE:
            self._wait_for_next()
        elif self.cycle.response_complete:
            self._expect(_REST_SECONDS)

    def _wait_for_next(self) -> None:
        """Wait for the rest of the next request's head if that has begun, else for as long as connections may idle."""
        self._unset_keepalive_if_required()
        self._expect(HEAD_SECONDS if len(self.conn._receive_buffer) else None)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """More waits to be sent than may, or the last bytes do: the client has to read some."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def timeout_keep_alive_handler(self) -> None:
        """The connection has been idle for long: what has not been read by now never will be."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, and end the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.abort()  # in the middle of another answer
            return
        body = APIError(400, f"{msg} Send it as RFC 9112 describes.", code="invalid_http").body()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        response = h11.Response(status_code=400, headers=headers, reason="Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write_eof()
        self._expect(_LINGER_SECONDS)

    def abort(self) -> None:
        """End the connection now, whatever waits to be sent."""
        self._stop_timers()
        self.transport.abort()

    def _expect(self, seconds: float | None) -> None:
        """Give the client so much time from now; None ends the time limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.abort)

    def _stop_timers(self) -> None:
        self._expect(None)
        if self._check is not None:
            self._check.cancel()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def abort_connection(scope: Scope) -> None:
    """End the connection of a request at once; the unread part of its answer is lost."""
    connection = scope.get("state", {}).get("connection")
    if isinstance(connection, ClientConnection):
        connection.abort()
