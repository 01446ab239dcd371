"""HTTP servers of the operator's own: on every address of the pod, of both families."""

from __future__ import annotations

import ssl

from aiohttp import web

_SHUTDOWN_SECONDS = 2.0  # for answers that are being given when the server ends


async def listen(app: web.Application, port: int, context: ssl.SSLContext | None = None) -> web.AppRunner:
    """Serve `app`, over TLS with a `context`, until the runner's cleanup; OSError if the port is taken."""
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)
    await runner.setup()
    await web.TCPSite(runner, None, port, ssl_context=context).start()
    return runner
