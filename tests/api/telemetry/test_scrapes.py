"""A flood of scrapes shares pages of /metrics and begins bit by bit: the same thread answers probes."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
from unittest.mock import Mock

import pytest
from starlette.responses import Response

from octavo_engine.server.connections import acceptor
from octavo_engine.server.connections.acceptor import Acceptor, HeadReaders, Listeners
from octavo_engine.server.connections.quick_probes import QuickProbes
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_engine.server.telemetry.scrape_page import BURST, RENDERS_PER_SECOND, ScrapePage
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import PATIENCE, serve, wait_until


class Renders:
    """A page that says how often it was rendered, at a time that the test sets."""

    def __init__(self) -> None:
        self.count = 0
        self.now = 100.0
        self.page = ScrapePage(self.render, lambda: self.now)

    def render(self) -> bytes:
        self.count += 1
        return b"%d" % self.count


def test_each_scrape_of_an_ordinary_rate_gets_a_new_page() -> None:
    renders = Renders()
    pages = []
    for _ in range(50):
        pages.append(renders.page.read())
        renders.now += 1 / RENDERS_PER_SECOND
    assert pages == [b"%d" % number for number in range(1, 51)]


def test_a_flood_of_scrapes_gets_the_newest_page() -> None:
    renders = Renders()
    pages = [renders.page.read() for _ in range(1000)]
    assert (renders.count, pages[-1]) == (BURST, b"%d" % BURST)
    renders.now += 1.5 / RENDERS_PER_SECOND
    assert [renders.page.read() for _ in range(1000)] == [b"%d" % (BURST + 1)] * 1000
    renders.now += 3600
    for _ in range(1000):
        renders.page.read()
    assert renders.count == 2 * BURST + 1


def test_the_server_renders_few_pages_for_a_flood(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = []
    render = Metrics.render

    def counted(metrics: Metrics) -> bytes:
        rendered.append(metrics)
        monkeypatch.setattr(
            "octavo_engine.server.telemetry.scrape_page.RENDERS_PER_SECOND", 0.0
        )  # however slow this machine is
        return render(metrics)

    monkeypatch.setattr(Metrics, "render", counted)
    with serve(tokenizer) as served:
        pages = [served.http.get("/metrics") for _ in range(60)]
    assert {page.status_code for page in pages} == {200}
    assert all("octavo_requests_running" in page.text for page in pages)
    assert len(rendered) <= BURST


class Answered(asyncio.Protocol):
    """Notes the client of each connection that is answered."""

    def __init__(self, clients: queue.SimpleQueue[tuple[str, int]]) -> None:
        self._clients = clients

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._clients.put(transport.get_extra_info("peername"))


@pytest.mark.parametrize("path", [b"/metrics", b"/health/live?odd"])
def test_a_plain_probe_does_not_wait_for_the_scrapes_and_odd_probes_before_it(
    monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    """With a pause that does not end within the test, one of those begins and the others wait."""
    monkeypatch.setattr(acceptor, "_PACE", 3600.0)
    listener = socket.create_server(("127.0.0.1", 0))
    clients: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    quick = {b"GET /health/live HTTP/1.1\r\n\r\n": b"alive"}.get
    heads = HeadReaders(quick_answer=quick)
    accepting = Acceptor(Listeners(listener), 100, lambda _: None, lambda _: lambda: Answered(clients), heads)

    def connect(path: bytes) -> socket.socket:
        client = opened.enter_context(socket.create_connection(listener.getsockname()))
        client.sendall(b"GET " + path + b" HTTP/1.1\r\n\r\n")
        return client

    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        first = connect(path)
        assert clients.get(timeout=PATIENCE) == first.getsockname()
        others = [connect(path) for _ in range(100)]  # more than may wait, and more than may be silent
        wait_until(lambda: len(accepting._scrapes) + len(accepting._odd_probes) == acceptor._MOST_PACED)
        probe = connect(b"/health/live")
        assert b"".join(iter(lambda: probe.recv(100), b"")) == b"alive"
        assert clients.empty()
        accepting.stop()
        for other in others:  # closed, with a reset, as what they sent was not read
            with contextlib.suppress(ConnectionResetError):
                assert other.recv(1) == b""


ODD_PROBES = (
    b"GET /health/live HTTP/1.1\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\nhost: y\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: a@b\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\nX-Request-ID: a\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\nX: y\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\nG",
    b"GET /health/nothing HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health/live?x HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health/live HTTP/1.0\r\nHost: x\r\n\r\n",
)


@pytest.mark.parametrize("request_", ODD_PROBES)
def test_only_a_plain_probe_is_answered_without_the_application(request_: bytes) -> None:
    quick = QuickProbes({"/health/live": lambda: Response(b"alive")})
    assert quick.answer(request_) is None


def test_a_plain_probe_gets_the_answer_of_the_application(tokenizer: Tokenizer) -> None:
    with serve(tokenizer) as server:
        for path in ("/health", "/health/startup", "/health/ready", "/health/live", "/health/adapters"):
            plain, odd = (server.http.get(path + query) for query in ("", "?odd"))
            assert (plain.status_code, plain.content) == (odd.status_code, odd.content)
            assert set(odd.headers) - set(plain.headers) == {"openai-processing-ms"}
            head = server.http.head(path)
            assert (head.content, head.headers["content-length"]) == (b"", str(len(plain.content)))
        many = [{"name": str(number), "message": "x" * 5000} for number in range(1000)]
        server.serving.listed_adapters = Mock(report=lambda: many)
        assert server.http.get("/health/adapters").json() == {"adapters": many}  # more than the kernel takes at once


def test_half_a_probe_is_a_connection_of_the_server() -> None:
    """Otherwise a client could open connections beyond --max-connections, up to the limit of open files."""
    listener = socket.create_server(("127.0.0.1", 0))
    clients: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    handed: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    accepting = Acceptor(Listeners(listener), 100, handed.put, lambda _: lambda: Answered(clients))
    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        for begin in (b"GET /health/live HTTP/1.1\r\nHost: x\r\n", b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 5000):
            client = opened.enter_context(socket.create_connection(listener.getsockname()))
            client.sendall(begin)
            assert opened.enter_context(handed.get(timeout=PATIENCE)).getpeername() == client.getsockname()
        assert clients.empty()


def test_scrapes_of_the_clients_port_are_not_answered_beside_a_port_for_metrics() -> None:
    listener, metrics = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    clients: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    handed: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    accepting = Acceptor(Listeners(listener, metrics), 100, handed.put, lambda _: lambda: Answered(clients))
    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        ours, theirs = (
            opened.enter_context(socket.create_connection(each.getsockname())) for each in (metrics, listener)
        )
        for client in (ours, theirs):
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert opened.enter_context(handed.get(timeout=PATIENCE)).getpeername() == theirs.getsockname()
        assert clients.get(timeout=PATIENCE) == ours.getsockname()
        assert clients.empty()


def test_all_scrapes_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_PACE", 0.001)
    listener = socket.create_server(("127.0.0.1", 0))
    clients: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    accepting = Acceptor(Listeners(listener), 100, lambda _: None, lambda _: lambda: Answered(clients))
    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        scrapers = [opened.enter_context(socket.create_connection(listener.getsockname())) for _ in range(40)]
        for scraper in scrapers:
            scraper.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert {clients.get(timeout=PATIENCE) for _ in scrapers} == {each.getsockname() for each in scrapers}
