"""Runs some work until it ends, unless something else ends first, such as the client's connection."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_until(
    work: Coroutine[Any, Any, Result] | asyncio.Task[Result],
    *others: Coroutine[Any, Any, Any],
    timeout: float | None = None,
) -> asyncio.Task[Result]:
    """Run `work` until it, one of `others`, or `timeout` seconds have ended, and return its task.

    Whatever has not ended then is cancelled; the returned task is `cancelled()` if `work` was.
    """
    working = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
    tasks = (working, *(asyncio.create_task(each) for each in others))
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()  # has no effect on a task that has ended
        await asyncio.gather(*tasks, return_exceptions=True)
    return working
