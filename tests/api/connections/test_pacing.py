"""Thousands of clients that do the same at the same moment: the event loop does a part of it, and goes on with the
rest in its next iterations."""

from __future__ import annotations

import asyncio
import math
import select
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from h11 import LocalProtocolError
from uvicorn.server import ServerState

from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.errors import ConfigurationError
from octavo_engine.server import run
from octavo_engine.server.admission.auth import Key
from octavo_engine.server.connections import acceptor, client_flow, connection, read_pacer, shared_state, unread_input
from octavo_engine.server.connections.connection import ClientConnection
from octavo_engine.server.connections.http_connections import _http_config
from octavo_engine.server.connections.read_pacer import ReadPacer
from octavo_engine.server.connections.shared_state import SharedState
from octavo_engine.server.connections.spare_connection import spare_connections
from octavo_engine.server.connections.strict_http import StrictBuffer
from tests.api.hostile import TEXT, raw
from tests.api.served import PATIENCE, Served, write_keys


def test_an_iteration_of_the_loop_parses_for_a_few_milliseconds_and_keys_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 heads of 7,500 lines at the same moment: the loop did nothing else until it had parsed all of them."""
    clock, parsed, loop = [0.0], list[str](), Mock(spec=asyncio.AbstractEventLoop)
    monkeypatch.setattr(read_pacer, "time", Mock(monotonic=lambda: clock[0]))
    pacer = ReadPacer()

    def parse(name: str) -> None:
        clock[0] += 0.001
        parsed.append(name)

    for number in range(21):
        name = f"rude {number}" if number < 20 else "other"
        pacer.run(loop, partial(parse, name), lambda name=name: name[:4])  # type: ignore[misc]
    iterations = [len(parsed)]
    while loop.call_soon.called:
        then, *given = loop.call_soon.call_args.args
        loop.call_soon.reset_mock()
        then(*given)
        iterations.append(len(parsed) - sum(iterations))
    assert iterations == [4, 4, 4, 4, 4, 1, 0]
    assert parsed.index("other") < 8
    assert [each for each in parsed if each != "other"] == [f"rude {number}" for number in range(20)]


@pytest.fixture
def nothing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is parsed in the iteration in which it arrives."""

    run = ReadPacer.run

    def later(pacer: ReadPacer, loop: Any, act: Callable[[], None], owner: Callable[[], str]) -> bool:
        run(pacer, loop, lambda: None, str)
        pacer._waiting.add(owner(), act)
        return False

    monkeypatch.setattr(ReadPacer, "run", later)


@pytest.mark.usefixtures("nothing_at_once")
def test_requests_that_are_parsed_in_a_later_iteration_are_answered(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    server.play("Hello")
    lines = f"POST {TEXT} HTTP/1.1", "Host: x", "Content-Type: application/json", "Authorization: Bearer sk-ann"
    head = "\r\n".join((*lines, "Transfer-Encoding: chunked", "", "")).encode()
    request = head + b'4\r\n{"pr\r\n' + b"b\r\n" + b'ompt": "x"}' + b"\r\n0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        for piece in (request[:10], request[10:-40], request[-40:] + request * 3, request):
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 5
    assert raw(server, b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 401 ")
    assert raw(server, b"not HTTP\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.usefixtures("nothing_at_once")
def test_bytes_that_are_parsed_later_count_as_unread(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread_input, "MOST_UNREAD", 0)
    monkeypatch.setattr(unread_input, "SMALL", 100)
    server = start()
    assert raw(server, b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert raw(server, b"GET /version HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200 + b"\r\n\r\n") == b""
    server.wait_until(lambda: server.server._connections._shared.unread_input.total == 0)


class _Transport(Mock):
    """A transport that only notes whether it is read, and whether it is closed."""

    reading = True

    def __init__(self) -> None:
        super().__init__(spec=asyncio.Transport)
        self.is_closing.side_effect = lambda: self.close.called or self.abort.called
        self.get_write_buffer_size.return_value = 0
        self.get_extra_info.return_value = None
        self.pause_reading.side_effect = partial(setattr, self, "reading", False)
        self.resume_reading.side_effect = partial(setattr, self, "reading", True)

    def _get_child_mock(self, /, **given: Any) -> Mock:
        return Mock(**given)


class _Client:
    """A connection to an application that answers each request, without reading its body, when `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            await self.answers.wait()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

        config = _http_config(answer, 1)
        config.load()
        self.transport, self.shared = _Transport(), SharedState(lambda _: "")
        self.connection = ClientConnection(self.shared, config, ServerState(), {})
        self.connection.connection_made(self.transport)

    def send(self, data: bytes, *, later: bool = False) -> None:
        """Deliver bytes, which are parsed now, or `later`: in the next iteration of the loop."""
        assert self.transport.reading
        if later:
            self.shared.pacer.run(self.connection.loop, lambda: None, str)
            self.shared.pacer._waiting.add("", lambda: None)
        self.connection.data_received(data)

    async def answered(self) -> None:
        """Let the application answer all requests that it has got."""
        self.answers.set()
        async with asyncio.timeout(PATIENCE):
            while self.connection.server_state.tasks:
                await asyncio.sleep(0)
        self.answers.clear()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[[], _Client]:
    """Return the class of clients. Nothing they send is parsed later only because parsing has taken long."""
    monkeypatch.setattr(read_pacer, "_SECONDS", math.inf)
    return _Client


async def test_nothing_is_read_while_bytes_wait_even_after_the_body_of_an_answered_request(
    client: Callable[[], _Client],
) -> None:
    """uvicorn resumes the transport at the end of such a body. If it came in small pieces, bytes were lost."""
    one = client()
    one.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n\r\n")
    await one.answered()
    for _ in range(client_flow._SMALL_READS):
        one.send(b"x")
    one.send(b"x" * 8)
    one.send(b"GET / HTTP/1.1\r\n", later=True)
    assert not one.transport.reading
    async with asyncio.timeout(PATIENCE):
        while not one.transport.reading:
            await asyncio.sleep(0)
    one.send(b"Host: x\r\n\r\n")
    await one.answered()
    assert one.connection.server_state.total_requests == 2


async def test_a_connection_whose_next_request_waits_to_be_parsed_is_not_closed_as_idle(
    client: Callable[[], _Client],
) -> None:
    one = client()
    one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await one.answered()
    assert one.connection.timeout_keep_alive_task is not None
    one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", later=True)
    assert one.connection.timeout_keep_alive_task is None


async def test_a_connection_whose_next_request_waits_to_be_parsed_is_not_closed_for_new_ones(
    client: Callable[[], _Client],
) -> None:
    """It looked idle: at --max-connections it was closed, and its request was lost."""
    one, other = client(), client()
    for each in (one, other):
        each.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await each.answered()
    assert spare_connections([one.connection, other.connection]) == [one.connection], "it has been idle for longest"
    one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", later=True)
    assert spare_connections([one.connection, other.connection]) == [other.connection]


@pytest.mark.parametrize("kept", [False, True])
async def test_a_request_that_waits_to_be_parsed_is_answered_before_the_server_ends(
    client: Callable[[], _Client], *, kept: bool
) -> None:
    one = client()
    if kept:
        one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await one.answered()
    one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", later=True)
    one.connection.shutdown()
    assert not one.transport.is_closing()
    await one.answered()
    assert one.connection.server_state.total_requests == 1 + kept
    assert one.transport.close.called
    async with asyncio.timeout(PATIENCE):
        while one.shared.pacer._waiting:  # nothing of it is parsed a second time
            await asyncio.sleep(0)
    assert one.connection.server_state.total_requests == 1 + kept


async def test_bytes_that_wait_behind_ones_that_are_not_http_are_dropped(client: Callable[[], _Client]) -> None:
    """They are not parsed: the connection was reset, so that the client lost the error response."""
    one = client()
    one.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\nnot HTTP\r\n\r\n")
    await asyncio.sleep(0)
    one.answers.set()
    one.send(b"more of it", later=True)
    async with asyncio.timeout(PATIENCE):
        while one.shared.pacer._waiting:
            await asyncio.sleep(0)
    written = b"".join(call.args[0] for call in one.transport.write.call_args_list)
    assert written.count(b"HTTP/1.1 200 ") == written.count(b"HTTP/1.1 400 ") == 1
    assert not one.transport.abort.called


async def test_few_requests_end_in_one_iteration_when_very_many_clients_leave_at_once() -> None:
    """500 streams that were left at the same moment: the loop ended all of them before anything else went on."""
    shared, ended = SharedState(lambda _: ""), list[str]()

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        ended.append(scope["state"]["key"].name)

    def end(name: str) -> asyncio.Task[None]:
        scope = {"type": "http", "state": {"key": Key(name)}}
        nothing: Any = lambda: None  # noqa: E731  (as a weak reference to a connection that has ended)
        return asyncio.create_task(connection._run_counted(nothing, shared, app, scope, gone, Mock()))

    tasks = [end("rude") for _ in range(40)] + [end("other")]
    most, before = 0, 0
    async with asyncio.timeout(PATIENCE):
        while not all(each.done() for each in tasks):
            await asyncio.sleep(0)
            most, before = max(most, len(ended) - before), len(ended)
    assert 0 < most <= shared_state._ENDED_AT_ONCE
    assert ended.index("other") <= 3 * shared_state._ENDED_AT_ONCE


def test_few_new_connections_are_looked_at_in_one_iteration() -> None:
    """3,000 connections that sent their first byte at the same moment: a probe waited until all were looked at."""
    listener = socket.create_server(("127.0.0.1", 0))
    accepting = acceptor.Acceptor(acceptor.Listeners(listener), 100, Mock(), lambda _: asyncio.Protocol)
    passed: list[socket.socket] = []
    accepting._pass_on = lambda client, _: passed.append(client)  # type: ignore[method-assign]
    with ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(listener.getsockname())) for _ in range(20)]
        for _ in clients:
            ours = opened.enter_context(listener.accept()[0])
            ours.setblocking(False)
            accepting._await_request(ours)
        for client in clients:
            client.sendall(b"G")
        for ours in accepting._silent:
            assert select.select([ours], [], [], PATIENCE)[0]
        accepting._on_first_bytes()
        assert len(passed) == acceptor._BEGUN_AT_ONCE
        accepting._on_first_bytes()
        assert len(passed) == 20
        assert not accepting._silent
        listener.setblocking(False)
        accepting._close()


def test_very_many_lines_are_refused_before_each_is_parsed() -> None:
    """h11 takes 35 ms for a head, or trailers, of 16,000 lines, and no request is counted before."""
    for count, fits in ((255, True), (256, False)):
        buffer = StrictBuffer()
        buffer += b"GET / HTTP/1.1\r\n" + b"a:\r\n" * count + b"\r\n"
        if fits:
            assert len(buffer.maybe_extract_lines() or ()) == 256
        else:
            with pytest.raises(LocalProtocolError):
                buffer.maybe_extract_lines()


def test_threads_wait_little_for_the_interpreters_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has them wait for 5 ms, as does the thread that answers probes after each of its system calls."""
    seconds = list[float]()
    monkeypatch.setattr(sys, "setswitchinterval", seconds.append)
    monkeypatch.setattr(run, "bind", Mock(side_effect=ConfigurationError("the port is in use")))
    for name in ("keep_little_freed_memory", "limit_warnings_of_clients", "logs"):
        monkeypatch.setattr(run, name, Mock())
    with pytest.raises(ConfigurationError):
        run.serve(EngineConfig(model="smollm2"), ServerConfig())
    assert seconds and max(seconds) <= 0.001
