"""Tasks that must run for as long as the engine does: a callback learns when one ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


def needed(
    work: Awaitable[None], what: str, ended: Callable[[str, BaseException | None], None]
) -> asyncio.Future[None]:
    """Run `work`, and call `ended` when it ends, with a sentence that names `what` and the error that ended it."""
    task = asyncio.ensure_future(work)

    def report(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        ended(f"{what} has ended" + (f": {error!r}" if error is not None else ""), error)

    task.add_done_callback(report)
    return task
