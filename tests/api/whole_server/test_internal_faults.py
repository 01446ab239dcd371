"""Faults within the HTTP process: one connection is lost, or the server reports the fault and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from octavo_engine.errors import EngineDeadError
from octavo_engine.server import lifecycle, text_worker
from octavo_engine.server.connections import acceptor
from octavo_engine.server.connections.acceptor import Acceptor, Listeners
from octavo_engine.server.connections.connection import ClientConnection
from octavo_engine.server.console import load_lines
from octavo_engine.server.preparation.prepared import Rejected, Setup, Task
from octavo_engine.server.preparation.text_pool import TextPool, _Turn
from tests.api import odd_worker
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served, wait_until


class Listener(socket.socket):
    """A socket whose methods can be replaced."""


class Accepting:
    """An acceptor whose connections come out of a queue, and the clients that connect to it."""

    def __init__(self, opened: contextlib.ExitStack) -> None:
        self._opened = opened
        self._listener = Listener(socket.AF_INET)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(200)
        self._address = self._listener.getsockname()
        self.given: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self.acceptor = Acceptor(Listeners(self._listener), 100, self.give, lambda _: asyncio.Protocol)
        self.fails = False

    def give(self, connection: socket.socket) -> None:
        if self.fails:
            raise MemoryError
        self.given.put(connection)

    def connect(self, data: bytes = b"GET /version HTTP/1.1\r\n") -> socket.socket:
        client = self._opened.enter_context(socket.create_connection(self._address, PATIENCE))
        client.sendall(data)
        return client

    def is_served(self, client: socket.socket) -> bool:
        """Return True if the connection is handed on; False if it is closed."""
        deadline = time.monotonic() + PATIENCE
        while self.given.empty():
            assert time.monotonic() < deadline, f"neither handed on nor closed; the thread: {self.acceptor.ended}"
            client.settimeout(0.02)
            with contextlib.suppress(TimeoutError):
                with contextlib.suppress(ConnectionResetError):
                    assert client.recv(1) == b""
                return False
        self._opened.enter_context(self.given.get())
        self.acceptor.taken()
        return True


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    with contextlib.ExitStack() as opened:
        accepting = Accepting(opened)
        accepting.acceptor.start()
        opened.callback(accepting.acceptor.stop)
        turning = threading.Event()
        accepting.acceptor._loop.call_soon_threadsafe(turning.set)
        assert turning.wait(PATIENCE)  # what a test replaces is used by the thread's start too
        yield accepting


def test_an_acceptor_that_cannot_begin_closes_its_sockets(accepting: Accepting) -> None:
    """Clients would otherwise connect, and wait for an answer until the process ends."""
    listener = Listener(socket.AF_INET)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    failing = Acceptor(Listeners(listener), 100, accepting.give, lambda _: asyncio.Protocol)
    failing._loop.add_reader = Mock(side_effect=MemoryError)  # type: ignore[method-assign]
    failing.start()
    assert isinstance(failing.ended.exception(PATIENCE), MemoryError)
    assert listener.fileno() == -1


@pytest.mark.parametrize("method", ["register", "accept", "connect_accepted_socket"])
def test_an_error_with_one_connection_does_not_end_accepting(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_LOG_INTERVAL", PATIENCE)
    fault, failed = OSError(28, "No space left on device") if method == "register" else MemoryError(), list[str]()
    epoll = accepting.acceptor._awaited
    waits = SimpleNamespace(**{name: getattr(epoll, name) for name in ("register", "unregister", "poll")})
    monkeypatch.setattr(accepting.acceptor, "_awaited", waits)
    owner = {"accept": accepting._listener, "register": waits}.get(method, accepting.acceptor._loop)
    original = getattr(owner, method)

    def failing(*arguments: Any) -> Any:
        if len(failed) < 3:
            failed.append(method)
            raise fault
        return original(*arguments)

    monkeypatch.setattr(owner, method, failing)
    probe = b"GET /health HTTP/1.1\r\n\r\n"
    data = {"connect_accepted_socket": probe, "register": b""}.get(method, b"GET / HTTP/1.1\r\n")
    served = [accepting.is_served(accepting.connect(data)) for _ in range(3)]
    assert accepting.is_served(accepting.connect())
    assert len(failed) == 3
    assert any(served) == (method == "accept")  # there, no connection has been taken yet
    monkeypatch.setattr(accepting.acceptor, "_awaited", epoll)
    assert not accepting.acceptor._silent
    assert len([record for record in caplog.records if "connection" in record.message]) == 1
    assert "Traceback" not in caplog.text


def test_connections_that_cannot_be_handed_over_keep_no_place(accepting: Accepting) -> None:
    accepting.fails = True
    for _ in range(2 * acceptor._HANDED_AT_ONCE):
        assert not accepting.is_served(accepting.connect())
    accepting.fails = False
    assert accepting.is_served(accepting.connect())


def test_a_probe_that_arrives_while_the_acceptor_ends_begins_nothing(
    accepting: Accepting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise asyncio reports a destroyed task and an error of the server when the server exits."""
    silent = accepting.connect(b"")
    wait_until(lambda: accepting.acceptor._silent)
    begun = threading.Event()

    async def probe_while_ending() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(OSError):
                silent.sendall(b"GET /health/live HTTP/1.1\r\n\r\n")
            for _ in range(20):
                await asyncio.sleep(0.005)

    async def connect(*_: object) -> None:
        await asyncio.Event().wait()

    loop = accepting.acceptor._loop
    monkeypatch.setattr(loop, "connect_accepted_socket", connect)
    loop.call_soon_threadsafe(lambda: accepting.acceptor._begin(probe_while_ending()))
    assert begun.wait(PATIENCE)
    accepting.acceptor.stop()
    assert not accepting.acceptor._tasks


def test_a_protocol_that_cannot_be_made_costs_one_connection(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A process that has served before writes a warning of one kind once in some seconds.
    monkeypatch.setattr(logging.getLogger("octavo.connections"), "filters", [])
    server = start()
    init, failed = ClientConnection.__init__, list[int]()

    def failing(*arguments: Any, **named: Any) -> None:
        if not failed:
            failed.append(1)
            raise MemoryError
        init(*arguments, **named)

    monkeypatch.setattr(ClientConnection, "__init__", failing)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as client:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert server.http.get("/version").status_code == 200
    assert "closed by an error of the server: MemoryError()" in caplog.text
    assert "Traceback" not in caplog.text


def acceptor_fails(server: Served) -> None:
    """Its thread ends."""
    accepting = server.server._connections.acceptor
    accepting._loop.call_soon_threadsafe(accepting._loop.stop)


def heartbeat_fails(server: Served) -> None:
    """The task that shows probes that the loop turns ends."""
    server.do(lambda: [task.cancel() for task in asyncio.all_tasks() if "_beat" in repr(task.get_coro())])


def http_fails(server: Served) -> None:
    """uvicorn's own loop ends."""
    server.do(lambda: setattr(server.server._connections.http, "should_exit", True))


@pytest.mark.parametrize(
    ("fail", "what"),
    [
        (acceptor_fails, "the thread that accepts connections"),
        (heartbeat_fails, "the heartbeat"),
        (http_fails, "the HTTP server"),
    ],
)
def test_a_server_without_one_of_its_parts_drains_and_ends(
    start: Callable[..., Served], fail: Callable[[Served], None], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It would otherwise stay as it is: alive for its probes, or without any that are answered, and of no use."""
    server = start()
    server.play("one two three", hold_after=1)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(server.http.post, "/v1/completions", json={"prompt": "x"})
        server.wait_until(lambda: len(server.engine.requests) == 1)
        fail(server)
        server.wait_until(lambda: server.serving.draining)
        if fail is not http_fails:  # which takes its connections with it
            server.do(server.engine.release.set)
            assert answer.result().json()["choices"][0]["text"] == "one two three"
        outcome = server.join()
    assert isinstance(outcome, EngineDeadError)
    assert what in str(outcome)
    assert f"{what}" in caplog.text


def test_the_log_of_the_load_is_no_reason_to_end(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "log_load", lambda read: load_lines.log_load(read, 0.01))
    monkeypatch.setattr(load_lines, "line", lambda *_: 1 / 0)
    server = start()
    server.wait_until(lambda: "the load cannot be logged" in caplog.text)
    assert server.http.get("/health/ready").status_code == 200


def test_neither_is_a_first_reading_that_fails(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "log_load", lambda _: load_lines.log_load(lambda: 1 / 0, 0.01))  # type: ignore[arg-type, return-value]
    server = start()
    server.wait_until(lambda: "the load cannot be logged" in caplog.text)
    assert server.http.get("/health/ready").status_code == 200


def test_an_acceptor_that_ends_hands_over_what_waits_and_closes_the_rest(accepting: Accepting) -> None:
    """A connection that the kernel has, and nothing accepts any more, would be reset when the process ends."""
    silent = accepting.connect(b"")
    wait_until(lambda: accepting.acceptor._silent)
    held, entered = threading.Event(), threading.Event()

    def hold() -> None:
        accepting.acceptor._loop.stop()  # and this is its last turn
        entered.set()
        held.wait(PATIENCE)

    accepting.acceptor._loop.call_soon_threadsafe(hold)
    assert entered.wait(PATIENCE)
    late = [accepting.connect() for _ in range(100)]
    held.set()
    accepting.acceptor.ended.result(PATIENCE)
    assert silent.recv(1) == b""
    assert all(accepting.is_served(each) for each in late)
    assert accepting._listener.fileno() == -1
    with pytest.raises(ConnectionRefusedError):
        accepting.connect()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(KeyError("x"), 500, "internal_error"), (RecursionError(), 400, "request_too_complex")],
)
def test_an_error_in_a_text_worker_is_that_of_its_task_and_ends_no_process(
    error: Exception, status: int, code: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise its request would seem to take too much memory, and each one like it would cost a new process."""
    monkeypatch.setitem(text_worker.JOBS, "chat", Mock(side_effect=error))  # type: ignore[arg-type]
    found = text_worker.answer(Mock(), Task("chat", READY, b"{}"))
    assert isinstance(found, Rejected)
    assert (found.status, found.code, "KeyError" in caplog.text) == (status, code, status == 500)


async def test_a_text_worker_that_fails_in_an_unknown_way_is_replaced() -> None:
    pool = TextPool(workers=1, program=odd_worker.PROGRAM)
    await pool.start(Setup("smollm2", None, "auto"))
    try:
        [worker] = pool._workers

        async def broken(_: bytes) -> bytes:
            raise MemoryError

        worker.run = broken  # type: ignore[method-assign]
        task = asyncio.create_task(
            pool._run(await pool._turns.acquire("a"), _Turn("a", long=False, began=time.monotonic()), b"")
        )
        with pytest.raises(MemoryError):
            await task
        async with asyncio.timeout(PATIENCE):
            assert await pool._turns.acquire("a") is not worker
    finally:
        pool.close()
