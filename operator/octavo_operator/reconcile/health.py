"""The operator's own health: whether its work queue makes progress and events of the cluster arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from octavo_operator.reconcile.listen import listen
from octavo_operator.reconcile.queue import WorkQueue

STALLED_SECONDS = 120.0
HANGING_SECONDS = 600.0  # each request has its limit, and there are not so many in one reconcile
SILENT_SECONDS = 1800.0  # a resync, whose lists are signs of the cluster, makes some every minute


class Heartbeat:
    """The time of the last sign of the cluster: an event, or a list that succeeded."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def beat(self) -> None:
        """Record that the cluster has just sent something."""
        self._last = time.monotonic()

    def silent_seconds(self) -> float:
        """Return the seconds since the last sign."""
        return time.monotonic() - self._last


def problem(queue: WorkQueue[Any], heartbeat: Heartbeat) -> str:
    """Return the problem, as a sentence; empty if there is none."""
    stalled, hangs, silent = queue.stalled_seconds(), queue.longest_work_seconds(), heartbeat.silent_seconds()
    if stalled > STALLED_SECONDS:
        return f"no worker has finished anything for {stalled:.0f} s"
    if hangs > HANGING_SECONDS:
        return f"a worker has worked on the same LLMService for {hangs:.0f} s"
    if silent > SILENT_SECONDS:
        return f"no message from the cluster for {silent:.0f} s"
    return ""


async def serve_health(
    port: int, wrong: Callable[[], str], problems: Callable[[], Sequence[str]], metrics: Callable[[], bytes]
) -> web.AppRunner | None:
    """Serve until the runner's cleanup; port 0 serves nothing.

    `/healthz` answers 200, or 503 with what is `wrong` and a restart may fix; `problems`, which no restart fixes, are
    lines below. `/metrics` is in Prometheus' text format.
    """
    if not port:
        return None

    async def healthz(_: web.Request) -> web.Response:
        sentence = wrong()
        lines = [sentence or "ok", *problems()]
        return web.Response(status=503 if sentence else 200, text="".join(f"{line}\n" for line in lines))

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/metrics", show_metrics)])
    return await listen(app, port)
