"""The operator's own health: not that a server answers, but that work gets done and that news comes."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from octavo_operator.reconcile.queue import WorkQueue

STALLED_SECONDS = 120.0
SILENT_SECONDS = 1800.0  # three times the pause between two resyncs, each of which is news


class Heartbeat:
    """When something was last heard of the cluster: an event, or a list that succeeded."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def beat(self) -> None:
        """Something was heard just now."""
        self._last = time.monotonic()

    def silent_seconds(self) -> float:
        """How long nothing was heard."""
        return time.monotonic() - self._last


def trouble(queue: WorkQueue[Any], heartbeat: Heartbeat) -> str:
    """What is wrong, in a sentence; empty: nothing."""
    waited, silent = queue.oldest_wait_seconds(), heartbeat.silent_seconds()
    if waited > STALLED_SECONDS:
        return f"the oldest change has waited {waited:.0f} s for a worker"
    if silent > SILENT_SECONDS:
        return f"nothing was heard of the cluster for {silent:.0f} s"
    return ""


async def serve_health(queue: WorkQueue[Any], heartbeat: Heartbeat, port: int) -> web.AppRunner | None:
    """Serves `/healthz` until the runner's cleanup: 200, or 503 with what is wrong. Port 0 serves nothing."""
    if not port:
        return None

    async def healthz(_: web.Request) -> web.Response:
        wrong = trouble(queue, heartbeat)
        return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz)])
    runner = web.AppRunner(app, handle_signals=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", port).start()
    return runner
