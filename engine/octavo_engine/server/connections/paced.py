"""Pacing of connections: they begin one after another with pauses, so that a flood of them does not fill the loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable


class PacedConnections:
    """Begins at most one connection in each interval; the others wait in the order in which they came."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, interval: float, most: int, begin: Callable[[socket.socket], None]
    ) -> None:
        """Create the queue: at most `most` connections wait; `interval` is in seconds. All methods, and `begin`, are
        called in the loop's thread."""
        self._loop, self._interval, self._most, self._begin = loop, interval, most, begin
        self._waiting: deque[socket.socket] = deque()
        self._pausing = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: socket.socket) -> bool:
        """Begin the connection now or in its turn; close it, and return False, if too many wait."""
        if len(self._waiting) >= self._most:
            connection.close()
            return False
        self._waiting.append(connection)
        if not self._pausing:
            self._next()
        return True

    def close(self) -> None:
        """Close the connections that have not begun."""
        while self._waiting:
            self._waiting.popleft().close()

    def _next(self) -> None:
        self._pausing = bool(self._waiting)
        if self._waiting:
            self._loop.call_later(self._interval, self._next)
            self._begin(self._waiting.popleft())
