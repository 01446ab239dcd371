"""Clients that disconnect before their answer is complete."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from octavo_engine.server.run_until import run_until

Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of the work; None, after cancelling the work, if the client goes away."""
    task = await run_until(work, wait_for_disconnect(request.receive))
    return None if task.cancelled() else task.result()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone. The request's body must have been read."""
    message: Any = None
    while message is None or message["type"] != "http.disconnect":
        message = await receive()
