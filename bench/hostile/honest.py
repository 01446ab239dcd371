"""The honest tenant, which is measured during attacks: one user who streams answers, and probes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from bench.load import percentile

_LONGEST_GAP = 60.0
"""The longest time for which the next token is awaited, in seconds."""


@dataclass
class Seen:
    """The observations of a period, in seconds."""

    gaps: list[float] = field(default_factory=list)
    """The times between tokens, and from a request to its first token."""
    probes: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Answers that were not complete, and probes without a 200."""

    def figures(self) -> dict[str, float | int]:
        """Return the figures in milliseconds; NaN if nothing was observed."""
        return {
            "gap_p99_ms": percentile(self.gaps, 0.99) * 1000,
            "gap_max_ms": max(self.gaps, default=float("nan")) * 1000,
            "probe_p99_ms": percentile(self.probes, 0.99) * 1000,
            "probe_max_ms": max(self.probes, default=float("nan")) * 1000,
            "failures": len(self.failures),
        }


class Honest:
    """Streams one answer after another and probes /health/live each 100 ms, each in a task of its own."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key = port, key
        self.seen = Seen()

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Stream and probe until the block ends."""
        tasks = [asyncio.create_task(self._stream()), asyncio.create_task(self._probe())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(self) -> Seen:
        """Begin a new period, and return the `Seen` in which it is recorded.

        A wait for a token that began before still belongs to the last period.
        """
        so_far, last = len(self.seen.gaps) + len(self.seen.failures), self.seen
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_GAP):
                while len(last.gaps) + len(last.failures) == so_far:
                    await asyncio.sleep(0.005)
        self.seen = Seen()
        return self.seen

    async def _stream(self) -> None:
        while True:
            try:
                await self._answer()
            except (OSError, asyncio.IncompleteReadError) as error:
                self.seen.failures.append(f"stream: {type(error).__name__}")
                await asyncio.sleep(0.1)

    async def _answer(self) -> None:
        asked = {"prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "stream": True}
        body = json.dumps(asked).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
                f"Authorization: Bearer {self._key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            last, done = time.monotonic(), False
            if (status := (await reader.readline()).split(b" ")[1]) != b"200":
                self.seen.failures.append(f"stream: {status.decode()} {(await reader.read())[-300:]!r}")
                await asyncio.sleep(0.1)
                return
            while line := await reader.readline():
                if line.startswith(b"data: {"):
                    now = time.monotonic()
                    self.seen.gaps.append(now - last)
                    last = now
                done = done or line.startswith(b"data: [DONE]")
            if not done:
                self.seen.failures.append("stream: no [DONE]")
        finally:
            writer.close()

    async def _probe(self) -> None:
        while True:
            started = time.monotonic()
            try:
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                    writer.write(b"GET /health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                    status = (await reader.read()).split(b" ")[1]
                    writer.close()
                if status != b"200":
                    self.seen.failures.append(f"probe: {status.decode()}")
            except (OSError, IndexError, TimeoutError) as error:
                self.seen.failures.append(f"probe: {type(error).__name__}")
            self.seen.probes.append(time.monotonic() - started)
            await asyncio.sleep(0.1)
