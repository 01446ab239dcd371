"""Clients that send more than their share: requests and bytes are counted before a body is read, by key and in all."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo_engine.server import serving
from octavo_engine.server.admission.auth import ANYONE, Key
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.admission.refusal import RefusedError
from tests.api.hostile import CHAT, as_key, keys
from tests.api.served import PATIENCE, Served


def test_every_route_counts_before_its_body_is_read(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=keys(tmp_path, requestsPerMinute=5))
    for method, path, content in (
        ("POST", "/tokenize", b'{"prompt": "x"}'), ("POST", "/detokenize", b"no JSON"), ("GET", "/v1/models", b""),
        ("POST", "/v1/nonsense", b"{}"), ("POST", CHAT, b"[]"),
    ):  # fmt: skip
        headers = {**as_key("small"), "Content-Type": "application/json"}
        assert server.http.request(method, path, content=content, headers=headers).status_code != 429
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 5000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 429 ")
    assert server.http.get("/v1/models", headers=as_key("other")).status_code == 200


def test_a_body_that_is_still_coming_counts_as_a_request_under_way(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    server = start(api_key_file=keys(tmp_path, maxConcurrentRequests=1))
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 50\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head)
        server.wait_until(lambda: server.serving.uploads.used == 1)
        assert server.http.get("/v1/models", headers=as_key("small")).status_code == 429
    server.wait_until(lambda: server.serving.uploads.used == 0)
    assert server.http.get("/v1/models", headers=as_key("small")).status_code == 200


def test_bodies_have_a_budget_for_each_key_and_for_all(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_MAX_UPLOADS", 40_000)
    server = start(api_key_file=keys(tmp_path))
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 9000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head + b"x" * 8000)
        server.wait_until(lambda: server.serving.uploads.used == 8000)
        body = {"prompt": "x" * 3000}
        refused = server.http.post("/tokenize", json=body, headers=as_key("small"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["connection"] == "close"
        assert server.http.post("/tokenize", json=body, headers=as_key("other")).status_code == 200
    server.wait_until(lambda: server.serving.uploads.used == 0)


def test_a_client_that_writes_all_before_it_reads_learns_that_its_key_sends_too_much(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_MAX_UPLOADS", 1 << 20)
    server = start(api_key_file=keys(tmp_path))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as client:
        client.request("POST", "/tokenize", b" " * (6 << 20), as_key("small"))
        assert client.getresponse().status == 429
    server.wait_until(lambda: server.serving.uploads.used == 0)


def test_bytes_in_use() -> None:
    used = BytesInUse(100, "uploads", "bodies", lambda: True)
    alice, bob = used.hold(Key("alice")), used.hold(Key("bob"))
    alice.add(25)
    with pytest.raises(RefusedError) as caught:
        alice.add(1)
    assert caught.value.status == 429
    for name in "bcd":
        used.hold(Key(name)).add(25)
    with pytest.raises(RefusedError) as caught:
        bob.add(1)
    assert caught.value.status == 503
    alice.release()
    alice.release()
    bob.add(25)
    alone = BytesInUse(100, "uploads", "bodies", lambda: False).hold(ANYONE)
    alone.add(100)


def test_keys_that_use_up_everything_leave_room_for_one_that_asks_little() -> None:
    """Four keys took all of a budget together, each of them its share."""
    used = BytesInUse(1024, "uploads", "bodies", lambda: True)
    for name in "abcd":
        used.hold(Key(name)).add(256)
    honest = used.hold(Key("honest"))
    honest.add(4)
    with pytest.raises(RefusedError, match="1028 bytes of bodies are in use"):
        honest.add(1)
    others = [used.hold(Key(f"key {number}")) for number in range(64)]
    with pytest.raises(RefusedError, match="1280 bytes"):
        for each in others:
            each.add(4)


def test_a_request_without_a_body_is_not_refused_for_what_others_hold() -> None:
    used = BytesInUse(1024, "uploads", "bodies", lambda: True)
    for name in "abcd":
        used.hold(Key(name)).add(256)
    used.hold(Key("honest")).add(4)
    used.hold(Key("a")).add(0)
