"""Tokenizing and rendering on threads, so that a long prompt does not delay other streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from octavo_engine.server.refusal import RefusedError

_THREADS = 2
_MAX_PENDING = 512
P = ParamSpec("P")
T = TypeVar("T")


class TextWork:
    """A few threads and a bounded queue before them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="octavo-text")
        self._pending = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result; APIError 503 if too much is waiting for a thread already."""
        if self._pending >= _MAX_PENDING:
            raise RefusedError(503, "tokenizing", f"{self._pending} prompts wait to be tokenized", 1)
        self._pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))
        finally:
            self._pending -= 1

    def close(self) -> None:
        """End the threads once they have nothing to do."""
        self._pool.shutdown(wait=False, cancel_futures=True)
