"""`octavo-engine top URL`: shows the load of servers from their /metrics, as a live table, or as lines in a pipe."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from octavo_client import api
from octavo_client.argument_types import number_within, whole_number_within
from octavo_client.errors import ClientError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_HEADER = ("SERVER", "RUNNING", "WAITING", "KV%", "TOK/S", "HIT%", "TTFT-P50", "TTFT-P95", "REJECTED")
_TTFT = "octavo_time_to_first_token_seconds_bucket"
_RUNNING = "octavo_requests_running"
_NO_LOAD = frozenset({"invalid", "unauthorized"})
"""Reasons of rejections that an idle server would give too."""
_WANTED = frozenset(
    {
        _RUNNING,
        "octavo_requests_waiting",
        "octavo_kv_cache_usage_ratio",
        "octavo_generation_tokens_total",
        "octavo_prefix_cache_queried_tokens_total",
        "octavo_prefix_cache_hit_tokens_total",
        "octavo_requests_rejected_total",
    }
)
_TIMEOUT = 5.0
_TABLE_WIDTH = 80
"""A narrower terminal has no room for a URL beside its numbers."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A server's metrics at one time (monotonic seconds): sums over labels, and TTFT's buckets by bound in seconds."""

    at: float
    values: Mapping[str, float]
    buckets: Mapping[float, float]


@dataclass(slots=True)
class Server:
    """One server, a row of the table: its readings of the last seconds, or why there are none."""

    url: str
    window: float
    readings: deque[Reading] = field(default_factory=deque)
    problem: str = ""

    def take(self, reading: Reading) -> None:
        """Add a reading and forget those before the window, except the last of them, from which growth is counted.

        A server that was restarted counts from 0 again, so what was read before is forgotten.
        """
        self.problem = ""
        if self.readings and any(self.readings[-1].values[name] > reading.values[name] for name in _counters()):
            self.readings.clear()
        self.readings.append(reading)
        while len(self.readings) > 2 and self.readings[1].at <= reading.at - self.window:
            self.readings.popleft()

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the server's row."""
        if self.problem or not self.readings:
            return (self.url, self.problem, *[""] * (len(_HEADER) - 2))
        first, last = self.readings[0], self.readings[-1]
        values = last.values

        def grown(name: str) -> float:
            return values[name] - first.values[name]

        queried = grown("octavo_prefix_cache_queried_tokens_total")
        seconds = last.at - first.at
        return (
            self.url,
            f"{values[_RUNNING]:.0f}",
            f"{values['octavo_requests_waiting']:.0f}",
            f"{100 * values['octavo_kv_cache_usage_ratio']:.0f}",
            f"{grown('octavo_generation_tokens_total') / seconds:.1f}" if seconds else "-",
            f"{100 * grown('octavo_prefix_cache_hit_tokens_total') / queried:.0f}" if queried else "-",
            _quantile(first.buckets, last.buckets, 0.5),
            _quantile(first.buckets, last.buckets, 0.95),
            f"{grown('octavo_requests_rejected_total'):.0f}",
        )


def _counters() -> Iterator[str]:
    return (name for name in _WANTED if name.endswith("_total"))


def _quantile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> str:
    """Return the upper bound of the bucket with this quantile of the TTFTs between two readings."""
    grown = {bound: number - before.get(bound, 0.0) for bound, number in sorted(after.items())}
    total = grown.get(float("inf"), 0.0)
    if not total:
        return "-"
    bounds = list(grown)
    bound = next(each for each in bounds if grown[each] >= share * total)
    return f"<{bound:g}s" if bound != float("inf") else f">{bounds[-2]:g}s"


def read(text: str, at: float) -> Reading:
    """Return a reading of what /metrics answered; ClientError if an Octavo engine did not write it."""
    values: defaultdict[str, float] = defaultdict(float)
    buckets: defaultdict[float, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in _WANTED and sample.labels.get("reason") not in _NO_LOAD:
                    values[sample.name] += sample.value
                elif sample.name == _TTFT:
                    buckets[float(sample.labels["le"])] += sample.value
    except (ValueError, LookupError):  # the parser looks for the end of a label beyond that of the line
        raise ClientError("/metrics is not Prometheus' text format") from None
    if _RUNNING not in values:
        raise ClientError(f"/metrics has no {_RUNNING}; this is not an Octavo engine, or its model is not loaded yet")
    return Reading(at, values, buckets)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octavo-engine top`."""
    parser.add_argument("urls", nargs="+", metavar="URL", help="a server, such as http://localhost:8000")
    parser.add_argument(
        "--interval",
        type=number_within(0.1, 3600),
        default=2.0,
        metavar="S",
        help="seconds between readings (default: 2)",
    )
    parser.add_argument(
        "--window",
        type=number_within(0.1, 3600),
        default=10.0,
        metavar="S",
        help="seconds that TOK/S, HIT%%, TTFT and REJECTED cover (default: 10)",
    )
    parser.add_argument(
        "--count",
        type=whole_number_within(1, 1_000_000_000),
        metavar="N",
        help="end after N readings (default: at Ctrl-C)",
    )


def _fetch(http: httpx2.Client, server: Server) -> None:
    """Read one server's metrics; an error becomes its `problem`."""
    try:
        response = http.get(f"{api.server_url(server.url)}/metrics")
        if response.status_code != 200:
            raise ClientError(f"/metrics answers {response.status_code}")
        server.take(read(response.text, time.monotonic()))
    except httpx2.HTTPError as error:
        why = api.without_number(str(error)) or type(error).__name__
        server.problem = f"no answer{api.through_proxy(server.url)}: {why}"
    except ClientError as error:
        server.problem = str(error)


def _readings(servers: Sequence[Server], args: argparse.Namespace) -> Iterator[None]:
    """Read all servers again and again; ClientError if the first time none can be read."""
    with httpx2.Client(timeout=_TIMEOUT, mounts=api.NO_LOCAL_PROXY) as http:
        for number in count(1):
            for server in servers:
                _fetch(http, server)
            if number == 1 and all(server.problem for server in servers):
                raise ClientError("; ".join(f"{server.url}: {server.problem}" for server in servers))
            yield
            if number == args.count:
                return
            time.sleep(args.interval)


def table(servers: Sequence[Server]) -> Table:
    """Return the table for a terminal; if that is narrow, only URLs and problems are broken into lines."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns with the URL of a local server
    made.add_column(_HEADER[0], overflow="fold")
    for name in _HEADER[1:]:
        made.add_column(name, justify="right", no_wrap=True)
    for server in servers:
        # A problem is below the URL, where it takes no width from the numbers of other servers.
        cells = (f"{server.url}\n{server.problem}",) if server.problem else server.cells()
        made.add_row(*map(Text, cells))
    return made


def stacked(servers: Sequence[Server]) -> Text:
    """Return what a terminal of fewer than 80 columns shows: each URL on a line of its own, its numbers below it."""
    from rich.text import Text

    rows = [server.cells()[1:] for server in servers if not server.problem]
    widths = [max(map(len, column)) for column in zip(_HEADER[1:], *rows, strict=True)]

    def aligned(cells: Sequence[str]) -> str:
        return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))

    lines = [aligned(_HEADER[1:])]
    for server in servers:
        lines += [server.url, server.problem or aligned(server.cells()[1:])]
    return Text("\n".join(lines))


def line(cells: Sequence[str], width: int) -> str:
    """Return a row for a pipe, whose first cell is `width` characters wide."""
    return "  ".join((f"{cells[0]:<{width}}", *(f"{cell:>8}" for cell in cells[1:]))).rstrip()


def _show_lines(servers: Sequence[Server], args: argparse.Namespace) -> None:
    width = max(len(server.url) for server in servers)
    for number, _ in enumerate(_readings(servers, args)):
        if number == 0:
            sys.stdout.write(line(_HEADER, width) + "\n")
        sys.stdout.writelines(line(server.cells(), width) + "\n" for server in servers)
        sys.stdout.flush()


def _show_table(servers: Sequence[Server], args: argparse.Namespace) -> None:
    from rich.live import Live

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the cursor is shown again
    with Live(auto_refresh=False) as live:
        for _ in _readings(servers, args):
            show = stacked if live.console.width < _TABLE_WIDTH else table
            live.update(show(servers), refresh=True)


def run(args: argparse.Namespace) -> int:
    """Show the servers until Ctrl-C, or --count times; returns the exit code."""
    for url in args.urls:
        api.server_url(url)  # unlike a server that does not answer, an invalid URL is an error at once
    servers = [Server(url, args.window) for url in args.urls]
    with contextlib.suppress(KeyboardInterrupt):  # the usual way to end the command
        (_show_table if sys.stdout.isatty() else _show_lines)(servers, args)
    return 0
