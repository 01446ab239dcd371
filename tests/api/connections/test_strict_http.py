"""Clients that do not keep to HTTP/1.1: what proxies may read differently is 400, and ends the connection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from h11 import LocalProtocolError

from octavo_engine.server.connections import connection
from octavo_engine.server.connections.strict_http import StrictBuffer
from octavo_engine.server.console.repeated_warnings import limit_warnings_of_clients
from tests.api.hostile import raw
from tests.api.served import Served, write_keys

_CHUNKED = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
_WRONG_HOSTS = (
    ("/version", "a@b"), ("/health/live", "a@b"), ("/version", "a/b"), ("/version", "a b"), ("/version", "[::1"),
    ("/version", "x:8x"), ("/version", "%4g"), ("/version", "x\u00e9"),
)  # fmt: skip


@pytest.mark.parametrize("request_", [
    _CHUNKED + "Content-Length: 5\r\n\r\n0\r\n\r\n",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
    "GET /version HTTP/1.1\r\nHost: x\r\nX-Folded: a\r\n b\r\n\r\n",
    *(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n" for path, host in _WRONG_HOSTS),
    "GET /version HTTP/3.0\r\nHost: x\r\n\r\n",
    "GET /version HTTP/2.0\r\nHost: x\r\n\r\n",
    "GET /version HTTP/0.9\r\nHost: x\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET /version HTTP/1.1\nHost: x\n\n",
    "GET /version HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost : x\r\n\r\n",
    _CHUNKED + "\r\n11111111111111111\r\n",
    _CHUNKED + "\r\n2\r\n{}X\r\n",
    _CHUNKED + "\r\n\r\n{}\r\n",
    _CHUNKED + "\r\n;a=b\r\n{}\r\n",
    _CHUNKED + "\r\n2;a\rb\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + "\r\n2;a\0b\r\n{}\r\n0\r\n\r\n",
    _CHUNKED + "\r\n0x2\r\n{}\r\n",
    _CHUNKED + "\r\n\u00b2\r\n{}\r\n",
    "GET ?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET version HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET http:///version HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET ftp://x/version HTTP/1.1\r\nHost: x\r\n\r\n",
    _CHUNKED + "\r\n" + "1\r\n \r\n" * 1100,
    _CHUNKED + "\r\n2\r\n{}\r\n0\r\nX: a\r\n b\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\nHost: x\n\n",
])  # fmt: skip
def test_what_proxies_may_read_differently_is_400_and_ends_the_connection(server: Served, request_: str) -> None:
    answer = raw(server, request_.encode())
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"400 ")
    assert b"invalid_http" in last
    assert b"connection: close" in last.lower()


@pytest.mark.parametrize("head", [
    f"GET /version?{'x' * 70_000} HTTP/1.1\r\nHost: x",
    f"GET /version HTTP/1.1\r\nHost: x\r\nX: {'y' * 70_000}",
    "GET /version HTTP/1.1\r\nHost: x" + "\r\nX: y" * 150,
    "GET /version HTTP/1.1\r\nHost: x" + "\r\nX: y" * 300,
    "GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\r\nHost: x" + "\r\nX: y" * 300,
], ids=["target", "header", "150 headers", "300 headers", "300 headers of the second request"])  # fmt: skip
def test_a_head_that_is_too_large_is_431_and_ends_the_connection(server: Served, head: str) -> None:
    last = raw(server, f"{head}\r\n\r\n".encode()).rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"431 Request Header Fields Too Large\r\n")
    assert b"headers_too_large" in last
    assert b"connection: close" in last.lower()


@pytest.mark.parametrize("end", [b"\0", b"\x0b", b"\x0c"])
def test_what_a_pattern_of_h11_takes_long_to_refuse_is_refused_before(end: bytes) -> None:
    """For 30,000 spaces and a NUL the pattern for headers takes 20 s, in which the event loop does nothing else."""
    for lines, head in ((True, b"GET / HTTP/1.1\r\nX: "), (False, b"1; ")):
        buffer = StrictBuffer()
        buffer += head + b" " * 100 + (end if lines else b"\n") + b"\r\n\r\n"
        with pytest.raises(LocalProtocolError):
            buffer.maybe_extract_lines() if lines else buffer.maybe_extract_next_line()


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://x/version", 200), ("HTTPS://a:b@x:1/version?a=/", 200), ("http://x/nope", 404), ("http://x", 200),
     ("http://x?a=/version", 200), ("http://x//version", 404), ("http://http://x/version", 404)],
)  # fmt: skip
def test_a_target_as_proxies_are_sent_it_is_its_path(server: Served, target: str, status: int) -> None:
    """RFC 9112, 3.2.2: a server has to accept it. The router, the check of keys and the log see the path alone."""
    answer = raw(server, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "host", ["", "a_b.example", "10.0.0.1:8000", "[::1]", "[fe80::1%eth0]:80", "%41,b", "x: ", "x:99999"]
)
def test_a_host_is_any_name_or_address(server: Served, host: str) -> None:
    for path in ("/version", "/health/live"):
        answer = raw(server, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_target_as_proxies_are_sent_it_opens_nothing(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "a"))
    for target in ("http://x/v1/models", "http://health/live/v1/models", "http://x/health/live/../v1/models"):
        answer = raw(server, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ")


def test_an_error_of_the_parser_ends_its_connection_and_does_not_fill_the_log(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ValueError("not expected")

    limit_warnings_of_clients()
    monkeypatch.setattr(connection.StrictBuffer, "maybe_extract_lines", broken)
    for _ in range(5):
        with contextlib.suppress(ConnectionResetError):
            assert raw(server, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    monkeypatch.undo()
    assert server.http.get("/version").status_code == 200
    assert caplog.text.count("by an error of the server: ValueError") <= 1
    assert "Traceback" not in caplog.text


def test_a_chunk_extension_without_end_is_400_also_for_a_client_that_writes_on(server: Served) -> None:
    """Bytes that the server had not read reset the connection, and the client lost the answer."""
    assert b"invalid_http" in raw(server, (_CHUNKED + "\r\n1;").encode() + b"e" * 5_000_000)


def test_a_proper_chunked_body_with_trailers_is_read(server: Served) -> None:
    body = b'2\r\n{"\r\n0d\r\nprompt": "x"}\r\n' + b"1\r\n \r\n" * 1000 + b"400\r\n" + b" " * 1024 + b"\r\n"
    body += b"1\r\n \r\n" * 22 + b"0\r\nX-Checksum: 5 HTTP/3.0\r\n\r\n"
    head = (_CHUNKED + "Connection: close\r\n\r\n").encode()
    assert raw(server, head + body).startswith(b"HTTP/1.1 200 ")
