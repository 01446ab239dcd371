"""How an answer's head and body go to the socket."""

from __future__ import annotations

import h11

from octavo_engine.server.connections.connection import ServerConnection


def asked(method: str = "GET") -> ServerConnection:
    connection = ServerConnection(h11.SERVER)
    connection.receive_data(f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    assert isinstance(connection.next_event(), h11.Request)
    return connection


def test_a_head_of_known_length_goes_out_with_its_body() -> None:
    """Two writes woke the client twice."""
    for method, body in (("GET", b"Hello"), ("HEAD", b"")):
        connection = asked(method)
        assert connection.send(h11.Response(status_code=200, headers=[("Content-Length", "5")])) == b""
        written = connection.send(h11.Data(data=body))
        assert written.startswith(b"HTTP/1.1 200 ") and written.endswith(b"\r\n\r\n" + body)
        assert connection.send(h11.EndOfMessage()) == b""
    empty = asked()
    empty.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
    assert empty.send(h11.EndOfMessage()).startswith(b"HTTP/1.1 200 ")


def test_the_head_of_a_stream_goes_out_at_once() -> None:
    connection = asked()
    assert connection.send(h11.Response(status_code=200, headers=[])).startswith(b"HTTP/1.1 200 ")
    assert connection.send(h11.Data(data=b"Hello")) == b"5\r\nHello\r\n"
