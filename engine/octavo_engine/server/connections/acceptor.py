"""The thread that accepts connections, answers probes and scrapes, and hands other connections to the server's loop.

With this thread, probes and scrapes are answered even if the server's loop is busy, and connections that send nothing,
or are closed before they send a request, cost that loop nothing. The server's loop takes connections at its own pace;
until then they wait in this thread. The answer to a probe closes its connection, as the next request on it might not
be a probe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from octavo_engine.process_setup.listen import BACKLOG
from octavo_engine.server.connections.connection import HEAD_SECONDS
from octavo_engine.server.connections.fair_queue import FairQueue
from octavo_engine.server.connections.paced import PacedConnections

log = logging.getLogger("octavo.server")

_PROBE = re.compile(rb"(GET|HEAD) /health(/startup|/ready|/live|/adapters)?[ ?]")
_SCRAPE = re.compile(rb"(GET|HEAD) /metrics[ ?]")
_PACE = 0.005
"""Seconds between the starts of two scrapes, or of two probes that the application answers: both take longer than plain
probes, and need no API key either."""
_MOST_PACED = 64
"""Scrapes, and such probes, that may wait for their turn, which takes at most a third of a second; further ones are
closed."""
_PEEK = 4096
"""Bytes of a request by which a probe or a scrape is recognized, and within which its head has to end. A client that
sends half a probe is one of the server's connections: their number is limited, and that of connections in this thread
is not."""
_LONGEST_HEAD = 64 << 10
"""Bytes in which the end of a head is looked for if the client has closed its connection."""
_END_OF_HEAD = b"\r\n\r\n"
_ESTABLISHED = b"\x01"
"""The state in Linux's TCP_INFO of a connection that neither side has closed."""
_ACCEPTED_AT_ONCE = 16
"""Connections that are accepted in a row before the loop handles other events."""
_BEGUN_AT_ONCE = 16
"""Connections whose first bytes are looked at in a row before the loop handles other events, such as new probes."""
_PAUSE = 0.05
"""Seconds without accepting, after accepting a connection failed."""
_HANDED_AT_ONCE = 16
"""Connections that may be on their way to the server's loop at a time."""
_SEND_BUFFER = 256 << 10
"""Bytes that the kernel buffers for a client that does not read; without this limit it buffers megabytes."""
_RESERVED_FILES = 128
"""Open files that the process needs in addition to those of connections and of clients' uploads."""
_FILES_PER_CONNECTION = 2
"""Open files for each of --max-connections: its socket and another one, since as many connections again may be silent
or wait. If files ran out, probes could not be accepted either."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of accept() if the process or the machine has no room for another connection."""
_LOG_INTERVAL = 10.0

ProtocolFactory = Callable[[], asyncio.Protocol]


def possible_connections(wanted: int, files: int) -> int:
    """Raise the limit of open files if necessary, and return how many connections it allows, at most `wanted`.

    `files` is the number of files that clients may be uploading or reading beside them, each by a connection.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = _RESERVED_FILES + files
    needed = wanted * _FILES_PER_CONNECTION + reserved
    if soft < needed:
        soft = max(soft, needed if hard == resource.RLIM_INFINITY else min(hard, needed))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = (soft - reserved) // _FILES_PER_CONNECTION
    each_with_a_file = (soft - _RESERVED_FILES) // (_FILES_PER_CONNECTION + 1)
    possible = max(1, possible, min(files, each_with_a_file))
    if possible < wanted:
        log.warning(
            "the hard limit of open files, %d, allows %d connections instead of %d (--max-connections); "
            "raise it to %d (ulimit -n)",
            hard,
            possible,
            wanted,
            needed,
        )
    return min(wanted, possible)


@dataclass(frozen=True, slots=True)
class Listeners:
    """The bound sockets of the server."""

    api: socket.socket
    metrics: socket.socket | None = None
    """The socket of --metrics-port, where all connections are scrapes; None: scrapes come to `api`."""


def _no_owner(first: bytes) -> str:  # noqa: ARG001
    return ""


def _no_answer(first: bytes) -> bytes | None:  # noqa: ARG001
    return None


@dataclass(frozen=True, slots=True)
class HeadReaders:
    """Functions of a request's first bytes, with which it is handled before its headers are parsed."""

    owner_of: Callable[[bytes], str] = _no_owner
    """Returns the name of the API key that the request presents; owners take turns for the server's loop."""
    quick_answer: Callable[[bytes], bytes | None] = _no_answer
    """Returns the complete answer to a plain probe; None for one that the application has to answer."""


NO_READERS = HeadReaders()
"""All connections have one owner, and the application answers all probes."""


class Acceptor:
    """The accepting thread with its event loop, and the connections that have sent nothing yet (silent ones).

    At most half of `max_connections` may be silent; beyond that, the oldest silent connection is closed. As many may
    wait for the server's loop; beyond that, the newest of the owner with most is closed. Probes do not wait there.
    """

    def __init__(
        self,
        listeners: Listeners,
        max_connections: int,
        hand_over: Callable[[socket.socket], None],
        probes: Callable[[asyncio.AbstractEventLoop], ProtocolFactory],
        heads: HeadReaders = NO_READERS,
    ) -> None:
        """Prepare the thread, which will call `hand_over`.

        `probes` makes the protocols that answer, in the thread's loop, scrapes and the probes without a quick answer.
        Scrapes are answered there on one listener only: that of metrics if there is one.
        """
        self._answers_scrapes = listeners.metrics is None
        self._listeners = [(listeners.api, self._await_request)]
        if listeners.metrics is not None:
            self._listeners.append((listeners.metrics, self._answer))
        self._most_silent = max(1, max_connections // 2)
        self._hand_over, self._probes, self._heads = hand_over, probes, heads
        self._waiting: FairQueue[socket.socket] = FairQueue(self._most_silent)
        """Connections that have sent something and wait for the server's loop."""
        self._handed = 0
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._numbered: dict[int, socket.socket] = {}
        """The silent connections by their file descriptors."""
        self._awaited = select.epoll()
        """Says which of them have sent something. The loop itself would handle thousands of them in a row."""
        self._closed_silent = 0
        self._closing = False
        self._logged_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._scrapes = PacedConnections(self._loop, _PACE, _MOST_PACED, self._answer)
        self._odd_probes = PacedConnections(self._loop, _PACE, _MOST_PACED, self._answer)
        self._tasks: set[asyncio.Task[None]] = set()
        self.ended: Future[None] = Future()
        """Done when the thread has ended; holds the exception if an error ended the thread."""
        self._thread = threading.Thread(target=self._run, name="octavo-accept", daemon=True)

    def start(self) -> None:
        """Start the thread and accept connections."""
        self._protocol = self._probes(self._loop)
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting, hand over the connections that were accepted, and wait for the thread's end."""
        with contextlib.suppress(RuntimeError):  # the loop is closed already, after an error
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def taken(self) -> None:
        """Note that the server's loop has taken a connection. It calls this, in its own thread."""
        with contextlib.suppress(RuntimeError):  # the acceptor's loop is closed already
            self._loop.call_soon_threadsafe(self._hand_next)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001  (the future reports it to the server)
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    def _serve(self) -> None:
        try:
            for listener, then in self._listeners:
                listener.setblocking(False)
                self._listen(listener, then)
            self._loop.add_reader(self._awaited.fileno(), self._on_first_bytes)
            self._loop.run_forever()
        finally:
            self._close()

    def _close(self) -> None:
        """Close all sockets and the loop, after handing the waiting and not yet accepted connections to the server."""
        self._closing = True
        last: list[socket.socket] = []
        for listener, _ in self._listeners:
            self._loop.remove_reader(listener)
        for silent in list(self._silent):
            self._forget(silent)
            if _first_bytes(silent):
                last.append(silent)
            else:
                silent.close()
        self._loop.remove_reader(self._awaited.fileno())
        self._awaited.close()
        self._scrapes.close()
        self._odd_probes.close()
        self._loop.run_until_complete(self._end_tasks())  # nothing is left that begins another task meanwhile
        self._accept(self._listeners[0][0], last.append, BACKLOG)
        for listener, _ in self._listeners:
            listener.close()
        for connection in (*self._waiting, *last):
            with self._closed_by_an_error(connection):
                self._hand_over(connection)
        self._loop.close()

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _listen(self, listener: socket.socket, then: Callable[[socket.socket], None]) -> None:
        if not self._closing:  # the acceptor may have begun to close during a pause
            self._loop.add_reader(listener, self._accept, listener, then)

    def _accept(
        self, listener: socket.socket, then: Callable[[socket.socket], None], most: int = _ACCEPTED_AT_ONCE
    ) -> None:
        """Accept at most `most` waiting connections, and call `then` for each. The loop calls this again for more."""
        for _ in range(most):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except Exception as error:  # noqa: BLE001  (no error may end accepting for good)
                self._log_accept_error(error)
                self._loop.remove_reader(listener)
                self._loop.call_later(_PAUSE, self._listen, listener, then)
                return
            with self._closed_by_an_error(connection):
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                    # Otherwise an answer's body waits for the client's ACK of the headers, which may take 40 ms.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                then(connection)

    def _log_accept_error(self, error: Exception) -> None:
        if not isinstance(error, OSError):
            self._log("a connection could not be accepted: %r", error)
        elif error.errno in _FULL:
            self._close_oldest()
            self._log("no further connection can be opened (%s)", error.strerror)

    @contextlib.contextmanager
    def _closed_by_an_error(self, connection: socket.socket) -> Iterator[None]:
        """Close the connection if the block raises an exception, and suppress it so that accepting goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the error ends only this connection, and the log is bounded)
            if connection in self._silent:
                self._forget(connection)
            connection.close()
            self._log("a connection was closed by an error of the server: %r", error)

    def _await_request(self, connection: socket.socket) -> None:
        """Wait for the first bytes of a new connection, unless some have arrived with it.

        The oldest silent connection is closed if there are too many. Bytes that have arrived are taken without waiting
        for an event. This saves half of the thread's system calls, and after each of these the thread may have to wait
        until the server's loop releases the interpreter's lock.
        """
        if first := _first_bytes(connection):
            self._pass_on(connection, first)
            return
        if len(self._silent) >= self._most_silent:
            self._expire(next(iter(self._silent)))
        self._silent[connection] = self._loop.call_later(HEAD_SECONDS, self._expire, connection)
        self._awaited.register(connection, select.EPOLLIN)
        self._numbered[connection.fileno()] = connection

    def _on_first_bytes(self) -> None:
        """Pass on some connections that are silent no longer, or close those that have ended."""
        for number, _ in self._awaited.poll(0, _BEGUN_AT_ONCE):
            connection = self._numbered[number]
            self._forget(connection)
            if first := _first_bytes(connection):
                self._pass_on(connection, first)
            else:
                connection.close()

    def _pass_on(self, connection: socket.socket, first: bytes) -> None:
        """Answer a probe, queue a scrape or a connection for the server, by its first bytes."""
        if _END_OF_HEAD not in first:
            self._hand_later(connection, first)
        elif _PROBE.match(first):
            self._answer_probe(connection, first)
        elif self._answers_scrapes and _SCRAPE.match(first):
            if not self._scrapes.add(connection):
                self._log("a scrape was closed: %d wait for their turn", len(self._scrapes))
        else:
            self._hand_later(connection, first)

    def _answer_probe(self, connection: socket.socket, first: bytes) -> None:
        with self._closed_by_an_error(connection):
            if len(first) < _PEEK and (answer := self._heads.quick_answer(first)) is not None:
                connection.recv(len(first))  # to close a connection with unread bytes would reset it
                connection.send(answer)
                connection.close()
            elif not self._odd_probes.add(connection):
                self._log("a probe was closed: %d wait for their turn", len(self._odd_probes))

    def _hand_later(self, connection: socket.socket, first: bytes) -> None:
        """Queue a connection for the server's loop; close one if too many wait. Probes do not wait there."""
        if (dropped := self._waiting.add(self._heads.owner_of(first), connection)) is not None:
            dropped.close()
            self._log("a connection was closed: %d wait for the server's loop", len(self._waiting))
        self._hand_on()

    def _hand_next(self) -> None:
        self._handed -= 1
        self._hand_on()

    def _hand_on(self) -> None:
        """Hand waiting connections to the server's loop, at most _HANDED_AT_ONCE at a time; close abandoned ones."""
        while self._waiting and self._handed < _HANDED_AT_ONCE:
            connection = self._waiting.take()
            if _has_closed(connection):
                connection.close()
                continue
            with self._closed_by_an_error(connection):
                self._hand_over(connection)
                self._handed += 1

    def _answer(self, connection: socket.socket) -> None:
        self._begin(self._connect(connection))

    async def _connect(self, connection: socket.socket) -> None:
        with self._closed_by_an_error(connection):
            await self._loop.connect_accepted_socket(self._protocol, connection)

    def _close_oldest(self) -> None:
        while self._silent:
            if self._expire(next(iter(self._silent))):
                return

    def _expire(self, connection: socket.socket) -> bool:
        """Close a connection that has been silent too long; return False if bytes have arrived, which are then served.

        The loop may not have looked at them yet: this process may not have run, or very many connections came at once.
        """
        if first := _first_bytes(connection):
            self._forget(connection)
            self._pass_on(connection, first)
            return False
        self._close_silent(connection)
        return True

    def _close_silent(self, connection: socket.socket) -> None:
        self._forget(connection)
        connection.close()
        self._closed_silent += 1
        self._log("%d connections were closed that had sent nothing (at most %d may be silent, for %g s)",
                  self._closed_silent, self._most_silent, HEAD_SECONDS)  # fmt: skip

    def _forget(self, connection: socket.socket) -> None:
        self._silent.pop(connection).cancel()
        if self._numbered.pop(connection.fileno(), None) is not None:
            self._awaited.unregister(connection)

    def _begin(self, work: asyncio._CoroutineLike[None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log(self, message: str, *arguments: object) -> None:
        """Log a warning, at most every _LOG_INTERVAL seconds, so that clients cannot fill the disk with log lines."""
        if (now := time.monotonic()) - self._logged_at >= _LOG_INTERVAL or not self._logged_at:
            self._logged_at = now
            log.warning(message, *arguments)


def _first_bytes(connection: socket.socket) -> bytes:
    """Return bytes that wait in a connection, without reading them; none if it has ended."""
    try:
        return connection.recv(_PEEK, socket.MSG_PEEK)
    except OSError:
        return b""


def _has_closed(connection: socket.socket) -> bool:
    """Return True if the client has closed its connection, or its sending half, before its headers were complete."""
    try:
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _ESTABLISHED:
            return False
        return _END_OF_HEAD not in connection.recv(_LONGEST_HEAD, socket.MSG_PEEK)
    except OSError:
        return True
