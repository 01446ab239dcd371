"""Asks pods over HTTP again and again, with limits of time, bytes and number, since what answers is not trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import aiohttp

from octavo_operator.reconcile.observation.observe import Object

_TIMEOUT_SECONDS = 2.0
_AT_ONCE = 32
_CHUNK_BYTES = 1 << 16

UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)
"""The errors of a question without an answer."""
ASKING_FAILED = (*UNREACHABLE, ValueError)
"""The errors of a question without an answer, and of an answer that is not what it should be."""


def why_unreachable(error: Exception) -> str:
    """Return in a few words why a question got no answer."""
    if isinstance(error, TimeoutError):
        return "it does not answer in time"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


class TooLongError(ValueError):
    """An answer has more bytes than are read."""


async def poll(poll_once: Callable[[aiohttp.ClientSession], Awaitable[None]], seconds: float) -> None:
    """Call `poll_once` again and again, `seconds` after it has ended, until the task is cancelled."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while True:
            await poll_once(session)
            await asyncio.sleep(seconds)


class PodQuestion:
    """One path that pods are asked for, at most 32 at a time, and the most bytes of an answer that are read."""

    def __init__(self, path: str, port: int, most_bytes: int) -> None:
        self._path, self._port, self._most_bytes = path, port, most_bytes
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, session: aiohttp.ClientSession, address: str) -> tuple[int, bytes]:
        """Return the status and the body of a pod's answer; TooLongError, or other ASKING_FAILED."""
        host = f"[{address}]" if ":" in address else address
        async with self._turns:
            return await bounded_answer(session, f"http://{host}:{self._port}{self._path}", self._most_bytes)


async def bounded_answer(session: aiohttp.ClientSession, url: str, most_bytes: int) -> tuple[int, bytes]:
    """Return the status and the body of the answer to GET; TooLongError, or other ASKING_FAILED."""
    data = bytearray()
    async with session.get(url, allow_redirects=False) as response:
        async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
            data += chunk
            if len(data) > most_bytes:
                raise TooLongError(f"the answer has more than {most_bytes} bytes")
        return response.status, bytes(data)


def address_of(pod: Object) -> str:
    """Return the address of a pod; empty if it has none, or if the pod is being deleted."""
    return "" if pod["metadata"].get("deletionTimestamp") else str((pod.get("status") or {}).get("podIP") or "")
