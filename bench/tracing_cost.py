"""Measures what OpenTelemetry spans cost the HTTP process, in CPU time a request: with a collector, and without.

     python -m bench.tracing_cost

Two servers with a scripted engine, which answers at once, run side by side and take turns at the same requests. CPU
time is compared, not latency, since it depends less on what else runs on the machine. A request of a real engine costs
more besides, so the shares are upper bounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import psutil

from bench.peers import free_port, wait_ready
from bench.report import save

_CLIENTS = 8
_BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
_SAMPLED = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that discards all spans until the block ends, and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextmanager
def serving(*flags: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server with a scripted engine until the block ends, and yield its URL and its HTTP process."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.api.scripted_server", "serve", "smollm2", "--host=127.0.0.1"]
    with subprocess.Popen([*command, f"--port={port}", *flags], stderr=subprocess.DEVNULL) as process:
        try:
            wait_ready(process, f"{url}/health/ready")
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()


def cpu_ms(process: psutil.Process, url: str, requests: int) -> float:
    """Return the CPU time of the process for each of `requests` requests, in ms, without its children's."""

    def ask(client: httpx2.Client) -> None:
        for _ in range(requests // _CLIENTS):
            client.post(f"{url}/v1/chat/completions", json=_BODY, headers=_SAMPLED).raise_for_status()

    before = process.cpu_times()
    with ExitStack() as stack, ThreadPoolExecutor(_CLIENTS) as pool:
        clients = [stack.enter_context(httpx2.Client(timeout=60)) for _ in range(_CLIENTS)]
        list(pool.map(ask, clients))
    after = process.cpu_times()
    return 1000 * (after.user + after.system - before.user - before.system) / (requests // _CLIENTS * _CLIENTS)


def table(without: Sequence[float], traced: Sequence[float]) -> str:
    """Return Markdown with both medians, the time that spans add, and the spread of the rounds."""
    medians = statistics.median(without), statistics.median(traced)
    added = statistics.median(after - before for before, after in zip(without, traced, strict=True))
    return (
        "| | CPU ms a request | rounds, smallest and largest |\n| --- | --- | --- |\n"
        f"| no collector | {medians[0]:.2f} | {min(without):.2f}, {max(without):.2f} |\n"
        f"| spans to a collector | {medians[1]:.2f} | {min(traced):.2f}, {max(traced):.2f} |\n"
        f"| what spans add, median of the rounds | {added:.2f} ({added / medians[0]:.0%}) | |"
    )


def main() -> None:
    """Entry point of `python -m bench.tracing_cost`."""
    parser = argparse.ArgumentParser(prog="bench.tracing_cost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="runs of each server (default: 6)")
    parser.add_argument("--requests", type=int, default=800, help="requests in each run (default: 800)")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, list[float]] = {"without": [], "traced": []}
    with collector() as collecting, serving() as plain, serving(f"--otlp-traces-endpoint={collecting}") as spans:
        servers = {"without": plain, "traced": spans}
        for url, process in servers.values():
            cpu_ms(process, url, args.requests // 4)  # the first ones import and compile
        for number in range(args.rounds):
            for name in ("without", "traced") if number % 2 else ("traced", "without"):
                url, process = servers[name]
                found[name].append(cpu_ms(process, url, args.requests))
    text = (
        f"`python -m bench.tracing_cost --rounds {args.rounds} --requests {args.requests}`: the HTTP process's own CPU "
        f"time for a short chat of {_CLIENTS} clients, the exporter's thread included, with an engine that answers at "
        f"once; {len(os.sched_getaffinity(0))} cores, load {load:.1f} before.\n\n"
    )
    text += table(found["without"], found["traced"]) + "\n"
    result = {"arguments": vars(args), "load_before": round(load, 2), "cpu_ms": found}
    save("tracing-cost", result, lambda title: f"# {title}\n\n{text}")


if __name__ == "__main__":
    main()
