"""The connections of clients in uvicorn's server, which the acceptor's thread hands over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from octavo_engine.server.connections.acceptor import Acceptor, HeadReaders, Listeners
from octavo_engine.server.connections.connection import MAX_HEADER_BYTES, ClientConnection
from octavo_engine.server.connections.shared_state import SharedState
from octavo_engine.server.connections.spare_connection import spare_connections

connection_log = logging.getLogger("octavo.connections")

_KEEP_ALIVE = 620
"""Seconds that an idle connection is kept: longer than clients and proxies keep theirs (90 s in Go's client, as in the
API server of Kubernetes; 600 s in Google's load balancers), so that they close it. If the server closed it, a request
that the client is just sending could be lost."""


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, because `lifecycle.Server` handles signals: it drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class HttpConnections:
    """uvicorn's server and the acceptor in front of it."""

    def __init__(
        self,
        app: ASGIApp,
        probes: ASGIApp,
        listeners: Listeners,
        heads: HeadReaders,
        max_connections: int,
        closing_seconds: float,
    ) -> None:
        """Prepare both, for at most `max_connections` to `app`; the acceptor answers by `probes`.

        Requests that still run `closing_seconds` after `stop` are cancelled.
        """
        self._probes = probes
        self._closing_seconds = int(closing_seconds)
        self._connecting: set[asyncio.Task[None]] = set()
        self._shared = SharedState(heads.owner_of)
        self.http = _Uvicorn(_http_config(app, self._closing_seconds))
        self._max_connections = max_connections
        self.acceptor = Acceptor(listeners, max_connections, self._hand_over, self._probe_protocols, heads)

    async def serve(self) -> None:
        """Serve the connections that are handed over, until `stop`."""
        await self.http.serve(sockets=[])

    def start(self) -> asyncio.Future[None]:
        """Begin to accept connections; return what is done when the accepting thread ends."""
        self._loop = asyncio.get_running_loop()
        self.acceptor.start()
        return asyncio.wrap_future(self.acceptor.ended)

    async def stop(self) -> None:
        """Accept no more connections, and let `serve` end."""
        await asyncio.to_thread(self.acceptor.stop)
        await asyncio.gather(*self._connecting)  # connections that the acceptor handed over as it stopped
        self.http.should_exit = True

    @property
    def unread(self) -> bool:
        """True if a client has not read all of its answer yet."""
        connections = self.http.server_state.connections
        return any(each.unread for each in connections if isinstance(each, ClientConnection))

    def _hand_over(self, connection: socket.socket) -> None:
        """Pass a connection from the acceptor's thread, which calls this, to the server's loop."""
        self._loop.call_soon_threadsafe(self._take_connection, connection)

    def _take_connection(self, connection: socket.socket) -> None:
        """Serve a connection. At --max-connections, close spare connections for it, or it if there are none."""
        self.acceptor.taken()
        state = self.http.server_state
        if len(state.connections) >= self._max_connections:
            spare = spare_connections([each for each in state.connections if isinstance(each, ClientConnection)])
            if not spare:
                connection.close()
                connection_log.warning(
                    "a connection was closed: all %d (--max-connections) are in use", self._max_connections
                )
                return
            connection_log.warning(
                "%d connections that were idle, or sent or read slowly, were closed for new ones: all %d "
                "(--max-connections) were in use", len(spare), self._max_connections,
            )  # fmt: skip
            for each in spare:
                each.abort()
                state.connections.discard(each)  # now, or the next connection would close more of them
        self._begin(self._connect(connection))

    async def _connect(self, connection: socket.socket) -> None:
        state, config, shared = self.http.server_state, self.http.config, self._shared
        try:
            await self._loop.connect_accepted_socket(lambda: ClientConnection(shared, config, state, {}), connection)
        except Exception as error:  # noqa: BLE001  (the error ends only this connection, and the log is bounded)
            connection.close()
            if not isinstance(error, OSError):
                connection_log.warning("a connection was closed by an error of the server: %r", error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _probe_protocols(self, loop: asyncio.AbstractEventLoop) -> Callable[[], ClientConnection]:
        """Return a factory of the protocols that answer probes in `loop`."""
        config = _http_config(self._probes, self._closing_seconds)
        config.load()
        state = ServerState()
        state.default_headers = [(b"connection", b"close")]
        shared = SharedState(lambda _: "")
        return lambda: ClientConnection(shared, config, state, {}, _loop=loop)


def _http_config(app: ASGIApp, closing_seconds: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ClientConnection,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=closing_seconds,
    )
