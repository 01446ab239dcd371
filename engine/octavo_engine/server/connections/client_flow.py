"""Decides when a client's connection is read: not while much of its input waits, rarely if it sends small pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sized

import h11
from uvicorn.protocols.http.flow_control import FlowControl

_READ_AHEAD = 64 << 10
"""Bytes of pipelined requests that are read while an earlier one is answered; beyond them the socket is not read."""
_SMALL_READS, _SMALL = 32, 1024
"""A request may come in 32 pieces of any size; further ones should have 1,024 bytes or more on average."""
_PAUSE = 0.0005
"""Seconds for which small pieces are collected, for each open connection: so all of them together cause at most 2,000
reads in a second. 3,000 connections that sent single bytes without a pause made another key wait for 4.4 s."""


class ClientFlow(FlowControl):
    """uvicorn's flow control with a bound on pipelined requests, and pauses for clients that send small pieces.

    Without the bound, all requests of a client that sends many and reads slowly would be held in memory here.
    """

    def __init__(
        self, transport: asyncio.Transport, http: h11.Connection, connections: Sized, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Create the flow control of one of the `connections`."""
        super().__init__(transport)
        self._http, self._connections, self._loop = http, connections, loop
        self._reads = self._bytes = 0
        self._collecting: asyncio.TimerHandle | None = None
        """Ends the pause in which small pieces are collected."""
        self._held = False

    def count_read(self, size: int) -> None:
        """Count a read, and pause if the request comes in too many small pieces."""
        self._reads += 1
        self._bytes += size
        if self._reads > _SMALL_READS + self._bytes // _SMALL and self._collecting is None:
            super().pause_reading()
            self._collecting = self._loop.call_later(_PAUSE * len(self._connections), self._read_on)

    def begin_request(self) -> None:
        """Count reads from zero, as another request begins."""
        self._reads = self._bytes = 0

    def close(self) -> None:
        """Stop the timer."""
        if self._collecting is not None:
            self._collecting.cancel()

    def pause_reading(self) -> None:
        """Stop reading from the client, unless few bytes of later requests wait.

        A client's disconnect is noticed only while its connection is read.
        """
        if not self._may_read_ahead:
            super().pause_reading()

    def resume_reading(self) -> None:
        """Read from the client again, unless many bytes of later requests wait, or small pieces are collected."""
        if self._held or self._collecting is not None:
            return
        if self._http.their_state is not h11.DONE or self._may_read_ahead:
            super().resume_reading()

    def hold(self) -> None:
        """Read nothing until `go_on`, since what was read is not parsed yet.

        The transport may be read even if `read_paused`: uvicorn resumes it after the body of an answered request.
        """
        self._held = self.read_paused = True
        self._transport.pause_reading()

    def go_on(self) -> None:
        """Read from the client again, as before `hold`, if there was one."""
        if self._held:
            self._held = False
            self.resume_reading()

    def _read_on(self) -> None:
        self._collecting = None
        if not self._transport.is_closing():
            self.resume_reading()

    @property
    def reads_no_further(self) -> bool:
        """True if too many bytes of later requests wait: the client is then read only after the present answer."""
        return self._http.their_state is h11.DONE and len(self._http._receive_buffer) >= _READ_AHEAD

    @property
    def _may_read_ahead(self) -> bool:
        return self._http.their_state is h11.DONE and not self.reads_no_further
