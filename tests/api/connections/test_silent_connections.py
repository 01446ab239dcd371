"""Clients that open connections and send nothing, or little: connections are bounded in time and number, and probes
are answered beside them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import queue
import resource
import select
import socket
import struct
import threading
import time
import weakref
from asyncio import selector_events
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from octavo_engine.server.admission.auth import KeyRing
from octavo_engine.server.connections import acceptor, connection
from octavo_engine.server.connections.client_flow import ClientFlow
from octavo_engine.server.connections.connection import ClientConnection
from octavo_engine.server.connections.fair_queue import FairQueue
from octavo_engine.server.connections.spare_connection import spare_connections
from octavo_engine.server.openai.batches.storage import MAX_ALL_TRANSFERS
from tests.api.hostile import TEXT, keys, raw
from tests.api.served import PATIENCE, Served, wait_until, write_keys


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(acceptor, "HEAD_SECONDS", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("data", [b"", b"GET /ver", b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTT"])
def test_a_head_has_to_come_in_time_also_on_a_connection_that_is_kept(
    start: Callable[..., Served], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if data:  # what is handed over has come already: no pause of this process makes it late
        monkeypatch.setattr(acceptor, "HEAD_SECONDS", PATIENCE)
    answer = raw(start(), data)
    assert answer.count(b"HTTP/1.1 200") == data.count(b"\r\n\r\n")


@pytest.mark.usefixtures("impatient")
def test_a_head_that_comes_byte_by_byte_gets_no_more_time(start: Callable[..., Served]) -> None:
    server = start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client, pytest.raises(OSError):
        client.sendall(b"GET /version HTTP/1.1\r\nX: ")
        while True:
            client.sendall(b"x")
            time.sleep(0.02)


@pytest.mark.parametrize("together", [True, False])
def test_the_rest_of_a_refused_request_takes_no_time_from_the_next_one(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """A proxy sends requests of several clients over one connection: the end of one is no reason to cut the next."""
    for limit in ("HEAD_SECONDS", "_REST_SECONDS"):
        monkeypatch.setattr(connection, limit, PATIENCE)
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    server.play("one two three", hold_after=1)
    refused = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n".encode()
    body = b'{"prompt": "x", "stream": true}'
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-ann\r\n"
    stream = f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body

    def limited() -> list[bool]:
        connections = server.server._connections.http.server_state.connections
        return [each._timer is not None for each in connections]

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(refused)
        assert client.recv(65536).startswith(b"HTTP/1.1 401")
        assert server.do(limited) == [True]  # for the rest of the body
        if together:
            client.sendall(b"abcde" + stream)
        else:
            client.sendall(b"abcde")
            server.wait_until(lambda: server.do(limited) == [False])  # it may idle for longer than a head may take
            client.sendall(stream)
        server.wait_until(lambda: server.engine.requests)
        assert server.do(limited) == [False]
        server.do(server.engine.release.set)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("hard", "soft", "connections"), [(1 << 20, 8448, 4096), (1024, 1024, 384), (256, 256, 42), (130, 130, 1)]
)
def test_connections_leave_open_files_for_stored_files_and_probes(
    hard: int, soft: int, connections: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """4,096 uploads have 8,192 open files: without files for probes, the pod would be restarted."""
    limits = [(64, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    assert acceptor.possible_connections(4096, MAX_ALL_TRANSFERS) == connections
    assert limits[-1] == (soft, hard)
    assert [f"allows {connections} connections instead of 4096" in each for each in caplog.messages] == [True] * (
        connections < 4096
    )


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_takes_no_memory_after_its_end(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """3,000 ended ones took 25 MiB until a garbage collection, and reset ones until their time limit of 620 s."""
    in_memory: weakref.WeakSet[ClientConnection | ClientFlow] = weakref.WeakSet()
    made = ClientConnection.connection_made

    def connection_made(new: ClientConnection, transport: asyncio.Transport) -> None:
        made(new, transport)
        in_memory.update((new, new.flow))  # the latter belongs to requests too

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    head = "GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    complete = (f"{head}Authorization: Bearer sk-ann\r\n\r\n", f"{head}\r\n", "not HTTP\r\n\r\n")
    half = (head, f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-ann\r\nContent-Length: 9\r\n\r\n1")

    gc.disable()
    try:
        for text in complete + half:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
                client.sendall(text.encode())
                server.wait_until(lambda: in_memory)
                if text in complete:
                    assert client.recv(65536)
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.wait_until(lambda: not in_memory)
    finally:
        gc.enable()


def test_a_client_that_resets_while_it_gets_a_400_is_no_error_of_the_server(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[object] = []

    def not_connected(transport: object) -> None:
        ends.append(transport)
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(selector_events._SelectorSocketTransport, "write_eof", not_connected)
    for text, status in (("not HTTP\r\n\r\n", b"400"), ("GET /version HTTP/1.1\r\nHost: x\r\n\r\n", b"200")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
            client.sendall(text.encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 " + status)
    assert len(ends) == 1
    assert "error of the server" not in caplog.text


def test_idle_connections_are_kept_for_longer_than_proxies_keep_theirs(server: Served) -> None:
    """Go's transport, and so Kubernetes' API server, keeps them for 90 s, a load balancer of Google's for 600 s."""
    assert server.server._connections.http.config.timeout_keep_alive > 600


def test_probes_answer_beside_silent_connections_and_the_oldest_of_them_goes(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    server = start(max_connections=16)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(12)]
    assert silent[0].recv(1) == b""
    assert server.http.get("/health/live").status_code == 200
    assert server.http.get("/version").status_code == 200
    assert "connections were closed that had sent nothing (at most 8" in caplog.text
    for client in silent:
        client.close()


def test_with_too_many_connections_the_one_that_is_idle_for_longest_goes(start: Callable[..., Served]) -> None:
    server = start(max_connections=8)
    kept: list[socket.socket] = []

    def ask(client: socket.socket) -> None:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # the body may come after the head
            answer += (part := client.recv(65536))
            assert part, "it was closed"
        assert answer.startswith(b"HTTP/1.1 200")

    for number in range(12):
        kept.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
        ask(kept[-1])
        if number >= 7:
            ask(kept[2])  # the oldest but two, and in use
    server.wait_until(lambda: len(server.server._connections.http.server_state.connections) <= 8)
    for number in (0, 1, 3, 4):
        with contextlib.suppress(ConnectionResetError):
            assert kept[number].recv(1) == b""
    for number in (2, *range(5, 12)):
        ask(kept[number])
    for client in kept:
        client.close()


def test_a_connection_whose_first_request_is_not_read_yet_is_not_closed_for_the_next_one() -> None:
    """It looked idle. If all others sent bodies, it was the only one that did, and a new client was cut off."""
    new = Mock(spec=connection.ClientConnection, idle=True, has_been_read=False, scope=None)
    slow = [
        Mock(idle=False, has_been_read=True, scope={"path": "/v1/files"}, idle_since=number, cycle=Mock(more_body=True))
        for number in range(3)
    ]
    assert spare_connections([new, *slow]) == [slow[0]]
    assert spare_connections([new]) == []


def test_a_key_that_uploads_on_all_connections_leaves_room_for_others(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """Bodies that come slowly are not idle; all further connections were closed, of whatever client."""
    server = start(max_connections=8, api_key_file=keys(tmp_path))
    server.play("Hello", hold_after=1)

    def begin(name: str, length: int, body: str = "") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-{name}\r\nContent-Type: application/json"
        client.sendall(f"{head}\r\nContent-Length: {length}\r\n\r\n{body}".encode())
        return client

    server.http.close()  # its kept connection would be the first to go
    with contextlib.ExitStack() as opened:
        body = json.dumps({"prompt": "x"})
        answered = opened.enter_context(begin("small", len(body), body))
        server.wait_until(lambda: server.engine.requests)
        slow = []
        for number, name in enumerate(["other", *["small"] * 6], 2):
            slow.append(opened.enter_context(begin(name, 1000)))
            server.wait_until(
                lambda number=number: len(server.server._connections.http.server_state.connections) == number
            )
        newcomer = opened.enter_context(begin("other", len(body), body))
        with contextlib.suppress(ConnectionResetError):
            assert slow[1].recv(1) == b""  # the key's oldest; before any answer ends, whose idle connection would go
        server.do(server.engine.release.set)
        for client in (newcomer, answered):
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        slow[0].sendall(json.dumps({"prompt": "z"}).ljust(1000).encode())
        assert slow[0].recv(15) == b"HTTP/1.1 200 OK"


def test_the_loop_gets_connections_at_its_own_pace_and_none_that_were_closed() -> None:
    """Clients that open and close connections as fast as they can cost the server's loop nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    given: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    accepting = acceptor.Acceptor(acceptor.Listeners(listener), 100, given.put, lambda _: asyncio.Protocol)

    def connect(data: bytes = b"GET /version HTTP/1.1\r\n") -> socket.socket:
        client = socket.create_connection(listener.getsockname())
        client.sendall(data)
        return client

    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        for _ in range(acceptor._HANDED_AT_ONCE):
            opened.enter_context(connect())
            opened.enter_context(given.get(timeout=PATIENCE))
        waiting = [opened.enter_context(connect()) for _ in range(4)]
        waiting += [opened.enter_context(connect(b"GET /version HTTP/1.1\r\n\r\n"))]
        wait_until(lambda: len(accepting._waiting) == 5)
        assert given.empty()
        waiting[0].close()
        waiting[1].shutdown(socket.SHUT_WR)
        waiting[4].shutdown(socket.SHUT_WR)  # its request is complete: it waits for the answer
        for _ in range(acceptor._HANDED_AT_ONCE):
            accepting.taken()
        stayed = [opened.enter_context(given.get(timeout=PATIENCE)) for _ in range(3)]
        assert {each.getpeername() for each in stayed} == {each.getsockname() for each in waiting[2:]}


def test_connections_of_one_key_that_wait_for_the_loop_leave_room_for_those_of_others(tmp_path: Path) -> None:
    """Eight attacks at once had connections of another key reset, or wait for two seconds."""
    ring = KeyRing(write_keys(tmp_path / "keys.yaml", "rude", "other"))
    heads = {
        "rude": b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-rude\r\n\r\n",
        "other": b"POST / HTTP/1.1\r\nx-api-key:  sk-other \r\n\r\n",
        "": b"POST / HTTP/1.1\r\nAuthorization: Bearer sk-wrong\r\n\r\n",
    }
    waiting, dropped = FairQueue(6), []
    for number, name in enumerate(["rude"] * 6 + ["", "other", "rude", "other"]):
        assert ring.name_in(heads[name]) == name
        if (closed := waiting.add(name, Mock(spec=socket.socket, number=number))) is not None:
            dropped.append(closed.number)
    assert dropped == [5, 4, 8, 3]
    assert [each.number for each in waiting] == [0, 1, 2, 6, 7, 9]
    assert [waiting.take().number for _ in range(6)] == [0, 6, 7, 1, 9, 2]
    assert not len(waiting)
    assert ring.name_in(b"POST / HTTP/1.1\r\n") == ""


@pytest.mark.parametrize("event", ["more connections", "no more files", "the end"])
def test_a_connection_that_has_sent_its_request_is_not_closed_as_a_silent_one(event: str) -> None:
    """2,600 connections at once had others reset whose requests had arrived and were not looked at yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    given: list[socket.socket] = []
    accepting = acceptor.Acceptor(acceptor.Listeners(listener), 4, given.append, lambda _: asyncio.Protocol)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(listener.getsockname())) for _ in range(3)]

        def accept() -> None:
            connection = opened.enter_context(listener.accept()[0])
            connection.setblocking(False)
            accepting._await_request(connection)

        accept()
        accept()
        clients[0].sendall(b"GET /version HTTP/1.1\r\n\r\n")
        assert select.select([next(iter(accepting._silent))], [], [], PATIENCE)[0]
        if event == "more connections":
            accept()
        elif event == "no more files":
            accepting._log_accept_error(OSError(errno.EMFILE, "Too many open files"))
        if event == "the end":
            listener.setblocking(False)
            accepting._close()
        else:
            accepting._loop.close()
        assert clients[0].getsockname() in [each.getpeername() for each in given]
        assert len(accepting._silent) == {"more connections": 2}.get(event, 0)


def test_a_probe_is_answered_although_as_many_connections_wait_for_the_loop_as_may(
    start: Callable[..., Served],
) -> None:
    """2,600 connections at once had probes reset, since nothing new was accepted beside those that waited."""
    server = start(max_connections=8)
    server.engine.watchdog.timeout = float(PATIENCE)
    go_on, clients = threading.Event(), list[socket.socket]()
    server.loop.call_soon_threadsafe(go_on.wait, PATIENCE)
    try:
        accepting = server.server._connections.acceptor
        for number in range(acceptor._HANDED_AT_ONCE + 4):
            clients.append(socket.create_connection(("127.0.0.1", server.port)))
            clients[-1].sendall(b"GET /version HTTP/1.1\r\n")
            server.wait_until(lambda: accepting._handed + len(accepting._waiting) > number)  # noqa: B023
        for _ in range(3):
            assert server.http.get("/health/live").status_code == 200
    finally:
        go_on.set()
        for client in clients:
            client.close()


def test_probes_and_metrics_answer_while_the_loop_is_held_up_but_not_forever(start: Callable[..., Served]) -> None:
    server = start()
    server.engine.watchdog.timeout = float(PATIENCE)
    go_on = threading.Event()
    server.loop.call_soon_threadsafe(go_on.wait, PATIENCE)
    try:
        assert server.http.get("/health/live").status_code == 200
        assert server.http.get("/metrics").status_code == 200
        server.engine.watchdog.timeout = 1.0
        server.wait_until(lambda: server.http.get("/health/ready").status_code == 503)
        server.engine.watchdog.timeout = float(PATIENCE)
        assert server.http.get("/health/live").status_code == 200
        server.engine.watchdog.timeout = 1.0
        server.wait_until(lambda: server.http.get("/health/live").status_code == 503)
    finally:
        go_on.set()
    server.wait_until(lambda: server.http.get("/health/ready").status_code == 200)
