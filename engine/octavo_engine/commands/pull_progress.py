"""The progress of a download, reported on the terminal, in the log and over HTTP."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from tqdm import tqdm

from octavo_engine.engine.info import MemoryInfo
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.downloads.download import DownloadProgress
from octavo_engine.process_setup.listen import ANYWHERE, listening_socket
from octavo_engine.sizes import format_size

_TICK_SECONDS = 0.2
_LINE_SECONDS = 5.0


class Progress:
    """The latest state of one download. The downloading thread writes it, and other threads read it."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.now = DownloadProgress()
        self.memory: MemoryInfo | None = None

    def report(self, transfer: DownloadProgress) -> None:
        """Note how far the download is."""
        self.now = transfer


@contextmanager
def progress_lines(progress: Progress) -> Iterator[None]:
    """Show the progress on standard error: as a bar on a terminal, else as a line every few seconds."""
    done = Event()
    show = _bar if sys.stderr.isatty() else _lines
    thread = Thread(target=show, args=(progress, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bar(progress: Progress, done: Event) -> None:
    with tqdm(total=100, unit="%", desc=f"pulling {progress.model}", leave=False) as bar:
        while not done.wait(_TICK_SECONDS):
            bar.set_postfix_str(progress.now.detail, refresh=False)
            bar.update(int(progress.now.ratio * 100) - bar.n)


def _lines(progress: Progress, done: Event) -> None:
    last, began, first = "", time.monotonic(), progress.now
    while not done.wait(_LINE_SECONDS if last else _TICK_SECONDS):
        now = progress.now
        speed = max(0, now.done - first.done) / (time.monotonic() - began)
        known = speed and now.done * 100 >= now.total > 0  # the first bytes are those of small files
        left = f", {format_size(speed)}/s, {(now.total - now.done) / speed:.0f} s left" if known else ""
        if last and not now.total:
            left = f"; {time.monotonic() - began:.0f} s so far"
        line = f"octavo-engine: pulling {progress.model}: {now.detail}{left}\n"
        if line != last:
            sys.stderr.write(line)
            sys.stderr.flush()
        last = line


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not log probes that closed their connection early: a service's status quotes the end of this log."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def progress_port(progress: Progress, port: int) -> Iterator[int]:
    """Answer /health/startup and /metrics as a loading engine does, on all addresses; yield the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.answer(200, "text/plain; version=0.0.4; charset=utf-8", metrics(progress))
            else:
                self.answer(503, "application/json", json.dumps(health(progress)).encode())

        def answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Retry-After", "5")):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests: they are the kubelet's probes."""

    try:
        listener = listening_socket(ANYWHERE, port)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"--progress-port {port}: cannot listen there: {error}") from None
    server = _Server(("", port), Handler, bind_and_activate=False)
    server.socket.close()  # the base class makes one for IPv4 only
    server.socket = listener
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def health(progress: Progress) -> dict[str, object]:
    """Return the body of /health/startup: a loading engine's fields, and the downloaded bytes."""
    now = progress.now
    body: dict[str, object] = {
        "status": "loading",
        "phase": "pulling",
        "progress": round(now.ratio, 4),
        "detail": now.detail,
    }
    if now.total:
        body |= {"bytesLoaded": now.done, "bytesTotal": now.total}
    if progress.memory is not None:
        body["memory"] = progress.memory.as_json()
    return body


def metrics(progress: Progress) -> bytes:
    """Return the Prometheus metrics of a pod that is still downloading."""
    registry = CollectorRegistry()
    gauge = Gauge(
        "octavo_load_progress_ratio", "How much of the model is loaded, 0 to 1", ["model_name"], registry=registry
    )
    gauge.labels(progress.model).set(progress.now.ratio)
    return generate_latest(registry)
