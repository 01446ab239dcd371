"""One connection of a client: uvicorn's HTTP/1.1 protocol with time limits and strict parsing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from octavo_engine.server.admission.auth import key_of
from octavo_engine.server.connections.client_flow import ClientFlow
from octavo_engine.server.connections.shared_state import SharedState
from octavo_engine.server.connections.strict_http import StrictBuffer
from octavo_engine.server.errors import APIError

log = logging.getLogger("octavo.connections")

HEAD_SECONDS = 10.0
"""Time for a request's headers to be complete, from the connection's start or from their first byte."""
MAX_HEADERS, MAX_HEADER_BYTES = 100, 32 << 10
STALL_SECONDS = 30.0
"""Time for a client to read the bytes of an answer that wait for it."""
_SEND_BUFFER = 16 << 10
"""Bytes of an answer that may wait for a client in this process; beyond them the answer's writer is paused."""
_LATE_SECONDS, _GRACE_SECONDS = 1.0, 1.0
"""If a time limit ends so late, this process did not run meanwhile: what the client has sent may wait to be read, since
the loop runs timers first. The client then has a little more time, as it has if it waits for its turn to be parsed."""
_KEY_BYTES = 4096
"""Bytes of a head in which the API key is looked for that decides whose turn it is."""
_REST_SECONDS = 5.0
"""Time for the rest of a body to arrive if its request has been answered already."""
_LINGER_BYTES, _LINGER_SECONDS = 32 << 20, 3.0
"""The most bytes, and the longest time, that are read and dropped after a request that is not HTTP. Closing a
connection that has unread bytes resets it, and the client may lose the error response."""
_TOO_LARGE = 431
"""The status for a head that is too large (RFC 6585 section 5)."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_CHECK, _LAST_CHECK = 0.05, 5.0
"""Seconds between two checks whether a half-closed client still reads; each pause is twice the one before."""
_UNSEEN_SECONDS = 1.0
"""Seconds until the first such check of a client that is not read, since many bytes of its later requests wait."""


class ServerConnection(h11.Connection):
    """h11's connection with a short cut for body data, which does not change the state of the connection.

    A stream sends data for each token, and h11's walk through its state tables takes a seventh of a token's CPU time.
    The head of an answer of known length waits for its body, which comes at once: a second write to the socket, which
    wakes the client twice, takes as long as a tenth of a rejection.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = b""
        """A head that goes out with the first part of its body."""
        self.has_too_large_head = False
        """True if what is not accepted as HTTP/1.1 is a request's head that has too many lines or bytes."""

    def next_event(self) -> Any:
        """Return the next event that the received bytes hold; h11.RemoteProtocolError if they are not HTTP/1.1."""
        before = self.their_state
        try:
            return super().next_event()
        except h11.RemoteProtocolError as error:
            self.has_too_large_head = before is h11.IDLE and error.error_status_hint == _TOO_LARGE
            raise error.with_traceback(None)  # noqa: B904  (its traceback has a frame of h11 that refers to it)

    def send(self, event: Any) -> Any:
        """Return the bytes to send for an event, and those of the head that waited for it."""
        if isinstance(event, h11.Response) and any(name == b"content-length" for name, _ in event.headers):
            self._head = super().send(event) or b""
            return b""
        head, self._head = self._head, b""
        if type(event) is not h11.Data or self.our_state is not h11.SEND_BODY or self._writer is None:
            sent = super().send(event)
            return head + (sent or b"") if head else sent
        written = [head]
        self._writer(event, written.append)
        return b"".join(written)


class ClientConnection(H11Protocol):
    """uvicorn's h11 protocol with time limits for slow clients: uvicorn itself limits only idle connections.

    What it owns refers to it weakly, so that its memory is free as soon as it ends. In a circle of references it would
    live until the next full garbage collection: 3,000 ended connections of one client kept 25 MiB.
    """

    conn: ServerConnection

    def __init__(self, shared: SharedState, *args: Any, **kwargs: Any) -> None:
        """Create the protocol of one connection. All connections of a loop have the same `shared`."""
        super().__init__(*args, **kwargs)
        this = weakref.ref(self)
        self.app = partial(_run_counted, this, shared, self.app)
        self._shared, self._counted = shared, 0
        self._held = b""
        """Bytes that have arrived and are parsed when it is this connection's turn."""
        self.conn = ServerConnection(h11.SERVER, self.conn._max_incomplete_event_size)
        self.conn._receive_buffer = StrictBuffer()
        self.app_state = {**self.app_state, "connection": this}
        self._timer: asyncio.TimerHandle | None = None
        """Ends the connection if the client does not send in time."""
        self._stall: asyncio.TimerHandle | None = None
        """Ends the connection if the client does not read in time."""
        self._check: asyncio.TimerHandle | None = None
        """Calls the next check whether a client whose disconnect cannot be noticed still reads."""
        self._half_closed = False
        """True if the client has closed its sending half of the connection and waits for an answer."""
        self._refused = False
        """True if the client sent something other than HTTP and got an error: all further input is dropped."""
        self._late = False
        """True if the client has not sent in time, and the connection ends when it is its turn."""
        self._dropped_bytes = 0
        self.idle_since = 0.0
        """When the connection was opened, or when its last answer ended (monotonic seconds)."""
        self.has_been_read = False
        """False until bytes of the client have been read. The acceptor passes on no silent connection, so some wait."""

    def _should_upgrade(self) -> bool:
        """Return False: a client that asks for a WebSocket gets the answer of HTTP.

        uvicorn would advise in the log to install a library, with which this server would speak no WebSocket either.
        """
        return False

    @property
    def idle(self) -> bool:
        """True if no request is being answered, and nothing of the next one waits to be parsed."""
        return not self._held and (self.cycle is None or self.cycle.response_complete)

    @property
    def unread(self) -> bool:
        """True if an answer has begun that is not sent completely, or if bytes wait for the client to read."""
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        return begun or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit for the first request's headers."""
        super().connection_made(transport)
        self.flow: ClientFlow = ClientFlow(transport, self.conn, self.connections, self.loop)
        transport.set_write_buffer_limits(high=_SEND_BUFFER)
        self.idle_since = time.monotonic()
        self._expect(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and free input that was not read: this object lives until its answer's task has ended."""
        self._stop_timers()
        self._unset_keepalive_if_required()
        self.flow.close()
        super().connection_lost(exc)
        self.conn._receive_buffer, self._held = StrictBuffer(), b""
        if self.cycle is not None:
            self.cycle.body = bytearray()
        self.count_input()

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the client, now or when it is its turn."""
        if self._refused or self._late:
            self._drop(data)
            return
        self._held = data
        if not self._shared.pacer.run(self.loop, self._read_held, self._owner_of_held):
            self.flow.hold()  # until it is the client's turn
            self._unset_keepalive_if_required()
            self._end_if_too_much_waits()

    def _owner_of_held(self) -> str:
        """Return the name of the API key that has sent the bytes that wait to be parsed."""
        if self.conn.their_state is h11.IDLE or self.scope is None:
            return self._shared.owner_of(self._held[:_KEY_BYTES])
        return key_of(cast(Scope, self.scope)).name

    def _read_held(self) -> None:
        data, self._held = self._held, b""
        if not data or self.transport.is_closing():  # none if `shutdown` has read them before it was their turn
            return
        self.flow.go_on()
        if self._refused:  # for what came before these bytes
            self._drop(data)
        else:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """Parse these bytes. The client's time limit for a request's headers does not restart with each byte."""
        self.has_been_read = True
        waited = self.conn.their_state is h11.IDLE
        self.flow.count_read(len(data))
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self._end_if_too_much_waits():
            return
        if self.flow.reads_no_further and self._check is None and self.scope["http_version"] == "1.1":
            self._check = self.loop.call_later(_UNSEEN_SECONDS, self._look_for_client, _UNSEEN_SECONDS)
        if self.conn.their_state is not h11.IDLE:
            if waited or not self.idle:  # not idle: the next request came together with the rest of an answered one
                self._expect(None)
        elif not waited:
            self._wait_for_next()
        elif self._timer is None:
            self._expect(HEAD_SECONDS)

    def _end_if_too_much_waits(self) -> bool:
        """End the connection, and return True, if all connections have too many bytes that no request has read."""
        if self.count_input():
            return False
        log.warning("a connection was closed: clients have sent too many bytes that no request has read yet")
        self.abort()
        return True

    def count_input(self) -> bool:
        """Count the bytes that have arrived and were not read; return False if all connections have too many."""
        waiting = len(self.conn._receive_buffer) + len(self._body) + len(self._held)
        before, self._counted = self._counted, 0 if self.transport.is_closing() else waiting
        return self._shared.unread_input.change(before, self._counted)

    @property
    def _body(self) -> bytes | bytearray:
        return b"" if self.cycle is None else self.cycle.body

    def handle_events(self) -> None:
        """Handle parsed events. An exception closes the connection, with one log line instead of a traceback."""
        try:
            super().handle_events()
        except Exception as error:  # noqa: BLE001
            log.warning("a connection was closed by an error of the server: %r", error)
            self.abort()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the client's end of sending; return True to keep the connection open for the answer.

        It is kept if the client has sent a complete request and no answer has begun. A client that closed its whole
        connection looks the same until something is sent to it; if an answer has begun, it counts as gone.
        """
        if self._half_closed:
            return True
        complete = not (self._refused or self.idle or self.cycle.more_body or self.cycle.response_started)
        if complete and not self.transport.is_closing() and self.scope["http_version"] == "1.1":
            self._half_closed = True
            if self._check is not None:
                self._check.cancel()
            self._look_for_client(_FIRST_CHECK)
        return self._half_closed

    def _look_for_client(self, pause: float) -> None:
        """Send `100 Continue` again and again until the answer begins: clients ignore it, and a gone one is found."""
        self._check = None
        if self.transport.is_closing() or self.idle or not (self._half_closed or self.flow.reads_no_further):
            return
        if not self.cycle.response_started:
            self.transport.write(_CONTINUE)
        self._check = self.loop.call_later(pause, self._look_for_client, min(2 * pause, _LAST_CHECK))

    def _drop(self, data: bytes) -> None:
        self._dropped_bytes += len(data)
        if self._dropped_bytes > _LINGER_BYTES:
            self.abort()

    def on_response_complete(self) -> None:
        """Prepare for the next request after an answer, which may end before the request's body has arrived."""
        self.flow.begin_request()
        super().on_response_complete()
        self.count_input()
        if self._half_closed and self.idle:
            self.transport.close()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # as a pipelined request may have left the read-ahead buffer
        self.idle_since = time.monotonic()
        if self.transport.is_closing():
            self.pause_writing()
        elif self.conn.their_state is h11.IDLE:
            self._wait_for_next()
        elif self.cycle.response_complete:
            self._expect(_REST_SECONDS)

    def _wait_for_next(self) -> None:
        """Start the time limit for the next request's headers if they have begun, and the limit of idle connections."""
        self._unset_keepalive_if_required()
        self._expect(HEAD_SECONDS if len(self.conn._receive_buffer) else None)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        """Start the time limit for the client to read, as too many bytes, or an answer's last bytes, wait for it."""
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self._end_unread)

    def _end_unread(self) -> None:
        log.warning("a connection was closed: its client had not read an answer for %g s", STALL_SECONDS)
        self.abort()

    def resume_writing(self) -> None:
        """Stop the time limit for the client to read, as it has read."""
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that has been idle for too long, without waiting for a client that does not read."""
        if self.transport.get_write_buffer_size():
            self.abort()
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer input that is not HTTP, or a head that is too large, with an error, and end the connection."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.abort()  # in the middle of another answer
            return
        error = APIError(400, f"{msg} Send it as RFC 9112 describes.", code="invalid_http")
        if self.conn.has_too_large_head:
            error = head_too_large()
        body = error.body()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
        response = h11.Response(status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase)
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        with contextlib.suppress(OSError):  # the client has reset the connection meanwhile
            self.transport.write_eof()
        self._expect(_LINGER_SECONDS)

    def shutdown(self) -> None:
        """Close the connection once a request that has arrived is answered, even if it is not parsed yet."""
        self._read_held()
        super().shutdown()

    def abort(self) -> None:
        """End the connection at once; unsent bytes are lost."""
        self._stop_timers()
        self.transport.abort()

    def _expect(self, seconds: float | None) -> None:
        """Set the client's time limit for sending to `seconds` from now; None removes it."""
        if self._timer is not None:
            self._timer.cancel()
        due = self.loop.time() + (seconds or 0.0)
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._expire, due)

    def _expire(self, due: float) -> None:
        if self._held or self.loop.time() > due + _LATE_SECONDS:
            self._expect(_GRACE_SECONDS)
            return
        self._late = True
        self._shared.pacer.run(self.loop, self._end_late, str)

    def _end_late(self) -> None:
        if not self._refused and not self.transport.is_closing():  # it may have ended while it waited for its turn
            log.warning("a connection was closed: its client had not sent a request, or the rest of it, in time")
        self.abort()

    def _stop_timers(self) -> None:
        self._expect(None)
        if self._check is not None:
            self._check.cancel()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def head_too_large() -> APIError:
    """Return an APIError 431 for a head that is too large. It has not waited for its turn, so it ends its connection.

    Otherwise very many of them on kept connections would hold up all streams.
    """
    message = f"more than {MAX_HEADERS} headers or {MAX_HEADER_BYTES} bytes of them"
    return APIError(_TOO_LARGE, message, code="headers_too_large", headers={"Connection": "close"})


def abort_connection(scope: Scope) -> None:
    """End the connection of a request at once; unsent bytes of its answer are lost."""
    reference = scope.get("state", {}).get("connection")
    connection = None if reference is None else reference()
    if isinstance(connection, ClientConnection):
        connection.abort()


async def _run_counted(
    reference: weakref.ref[ClientConnection],
    shared: SharedState,
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Run the application for a request, and count what it reads of the connection's input.

    It learns that its client has gone when it is its turn: to end a request takes a millisecond, and 500 clients that
    left at the same moment held up all streams.
    """

    async def read() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            await shared.ends.wait(key_of(scope))
        elif (connection := reference()) is not None:
            connection.count_input()
        return message

    await app(scope, read, send)
