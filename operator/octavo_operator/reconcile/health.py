"""The operator's own health: not that a server answers, but that work gets done."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from octavo_operator.reconcile.queue import WorkQueue

STALLED_SECONDS = 120.0


async def serve_health(queue: WorkQueue[Any], port: int) -> None:
    """Serves `/healthz` for ever: 200, or 503 if a key has waited too long for a worker. Port 0 serves nothing."""

    async def healthz(_: web.Request) -> web.Response:
        waited = queue.oldest_wait_seconds()
        if waited > STALLED_SECONDS:
            return web.Response(status=503, text=f"the oldest change has waited {waited:.0f} s for a worker\n")
        return web.Response(text="ok\n")

    if port:
        app = web.Application()
        app.add_routes([web.get("/healthz", healthz)])
        runner = web.AppRunner(app, handle_signals=False, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", port).start()
    await asyncio.Event().wait()
