"""Supervised tasks of asyncio: a callback is called if one ends that should run for as long as the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


def supervise(
    work: Awaitable[None], name: str, on_end: Callable[[str, BaseException | None], None]
) -> asyncio.Future[None]:
    """Run `work`, and call `on_end` when it ends, with a sentence that has its `name` and the error that ended it."""
    task = asyncio.ensure_future(work)

    def report(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        on_end(f"{name} has ended" + (f": {error!r}" if error is not None else ""), error)

    task.add_done_callback(report)
    return task
