"""Clients that close their half of a connection, leave, or send further requests before the last is answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from octavo_engine.server.admission.pacer import Pacer
from octavo_engine.server.connections import client_flow, connection, unread_input
from tests.api.hostile import CHAT, HI, TEXT
from tests.api.served import PATIENCE, Served


def sent_and_half_closed(server: Served, *bodies: dict[str, Any]) -> socket.socket:
    """A client that has sent requests and the end of what it sends."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for body in map(json.dumps, bodies):
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    client.shutdown(socket.SHUT_WR)
    return client


def read_ahead(server: Served) -> list[int]:
    """The bytes of each connection that are read and not parsed yet; to be called in the server's thread."""
    connections = server.server._connections.http.server_state.connections
    return [len(each.conn._receive_buffer) for each in connections if isinstance(each, connection.ClientConnection)]


def test_a_client_that_sends_nothing_more_gets_its_answers(server: Served) -> None:
    server.play("Hello")
    with sent_and_half_closed(server, HI, {**HI, "stream": True, "max_tokens": 3}) as client:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"[DONE]") == 1
    with sent_and_half_closed(server) as client:
        assert client.recv(1) == b""


def test_a_client_that_closed_its_connection_is_not_answered_forever(server: Served) -> None:
    """It looks like one that only sends nothing more until something is sent to it."""
    server.play("one two three", hold_after=0)
    client = sent_and_half_closed(server, HI)
    server.wait_until(lambda: server.engine.requests)
    assert client.recv(12) == b"HTTP/1.1 100"
    client.close()
    server.wait_until(lambda: len(server.engine.aborted) == 1)


def test_requests_that_come_before_the_last_is_answered_wait_with_the_client(server: Served) -> None:
    """A pipeline of 10 MB: all of it is answered, and the server never holds much more of it than one read."""
    body = b'{"prompt": "Hi"}'
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    request = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 16_000 + b"\r\n" + length + body
    count = 600

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        sending = threading.Thread(target=client.sendall, args=(request * count,))
        sending.start()
        answers, most = b"", 0
        while answers.count(b"HTTP/1.1 200") < count:
            answers += (part := client.recv(65536))
            assert part
            assert b"HTTP/1.1 4" not in part
            most = max(most, *server.do(lambda: read_ahead(server)))
        sending.join()
    assert 0 < most < 1 << 20


def test_a_client_that_leaves_is_noticed_although_it_has_begun_another_request(server: Served) -> None:
    """Some old clients send a line break behind a body: their answers were computed to the end after they had left."""
    server.play("Hello there.", hold_after=1)
    body = b'{"prompt": "x"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head % len(body) + body)
        server.wait_until(lambda: server.engine.requests)
        client.sendall(b"\r\n")
        server.wait_until(lambda: 2 in server.do(lambda: read_ahead(server)))
    server.wait_until(lambda: len(server.engine.aborted) == 1)


def test_a_client_that_leaves_is_noticed_although_its_further_requests_fill_what_is_read_ahead(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is not read, so that its end is not seen: something has to be sent to it."""
    monkeypatch.setattr(connection, "_UNSEEN_SECONDS", 0.05)
    server.play("Hello there.", hold_after=1)
    body = b'{"prompt": "x"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall((head % len(body) + body) * 800)
        server.wait_until(lambda: server.engine.requests)
        server.wait_until(lambda: max(server.do(lambda: read_ahead(server))) > 64 << 10)
        assert client.recv(12) == b"HTTP/1.1 100"
    server.wait_until(lambda: len(server.engine.aborted) == 1)


def test_a_client_is_not_cut_off_because_the_server_did_not_run(server: Served) -> None:
    """A time limit that ends late does not end the connection: what was sent in time may still wait in the socket."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(b"GET /version HTTP/1.1\r\n")
        server.wait_until(lambda: any(server.do(lambda: read_ahead(server))))

        def expire_late() -> None:
            connections = server.server._connections.http.server_state.connections
            [ours] = [each for each in connections if len(each.conn._receive_buffer)]
            ours._expire(ours.loop.time() - 2)
            ours._expect(PATIENCE)

        server.do(expire_late)
        client.sendall(b"Host: x\r\nConnection: close\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_that_arrived_is_answered_although_the_time_of_a_silent_connection_is_over(server: Served) -> None:
    accepting, sent = server.server._connections.acceptor, threading.Event()

    def expire() -> None:
        sent.wait(PATIENCE)
        [timer] = accepting._silent.values()
        timer._callback(*timer._args)  # type: ignore[attr-defined]

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        server.wait_until(lambda: len(accepting._silent) == 1)
        accepting._loop.call_soon_threadsafe(expire)
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        sent.set()
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_in_very_many_small_pieces_is_read_with_pauses(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 connections that sent single bytes without a pause made another's answer wait for 4.4 s."""
    monkeypatch.setattr(client_flow, "_SMALL_READS", 2)
    monkeypatch.setattr(client_flow, "_PAUSE", 3600)
    server = start()
    body = b'{"prompt": "Hi"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate((head % len(body), body[:1], body[1:2]), 1):
            client.sendall(piece)
            server.wait_until(lambda number=number: any(flow._reads == number for flow in flows(server)))
        [flow] = [each for each in flows(server) if each._reads]
        assert flow.read_paused
        client.sendall(body[2:])
        assert server.http.post("/tokenize", json={"prompt": "Hi"}).status_code == 200
        assert flow.read_paused and flow._reads == 3
        server.do(flow._read_on)
        assert client.recv(12) == b"HTTP/1.1 200"


def flows(server: Served) -> list[client_flow.ClientFlow]:
    """The flow control of each connection."""
    return [each.flow for each in list(server.server._connections.http.server_state.connections)]


@pytest.mark.parametrize("in_body", [True, False])
def test_input_that_no_request_has_read_is_bounded_for_all_connections_together(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, in_body: bool
) -> None:
    """Bodies that arrive before their requests' turn, and requests behind one that is not answered yet."""
    monkeypatch.setattr(unread_input, "MOST_UNREAD", 0)
    monkeypatch.setattr(unread_input, "SMALL", 100)
    server = start()
    unread = server.server._connections._shared.unread_input
    server.play("Hello", hold_after=1)
    asked = json.dumps({"prompt": "x"})
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        if in_body:
            turn = asyncio.Event()
            monkeypatch.setattr(Pacer, "wait", lambda *_: turn.wait())
            client.sendall(f"{head}99999\r\n\r\n".encode() + b"x" * 40_000)
        else:
            client.sendall(f"{head}{len(asked)}\r\n\r\n{asked}".encode())
            server.wait_until(lambda: server.engine.requests)
            assert unread.total == 0
            client.sendall(f"{head}9\r\n".encode() + b"X: " + b"x" * 20_000)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(65536) == b""
    server.wait_until(lambda: unread.total == 0)
