"""Raw HTTP/1.1 for attacks, which can send and read bytes that no client library would."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SECONDS = 20.0
"""The longest wait for an answer, after which an attack continues without it."""
_KEPT = 1 << 16
"""The most bytes of an answer's body that are kept."""


@dataclass
class Target:
    """The server under attack, and the counts of its answers so far."""

    port: int
    key: str
    """The attacker's API key."""
    until: float
    """The end of the attack, in monotonic seconds."""
    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    """The seconds that the slowest answer took; those that never came are counted in `outcomes`."""
    keys: int = 1
    """How many API keys the requests have at random: with several, those that end in -0, -1 and so on."""
    alone: bool = False
    """True if one user sends its next body after the answer to the last, each of which has one token: an answer then
    takes as long as its request takes to be checked, and its grammar to be compiled."""

    @property
    def open(self) -> bool:
        """True while the attack goes on."""
        return time.monotonic() < self.until

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection, which is reset at the end of the block."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    @contextlib.contextmanager
    def sockets(self, count: int) -> Iterator[list[socket.socket]]:
        """Open `count` connections without a pause, as plain sockets that never block, and close them all at once."""
        with contextlib.ExitStack() as opened:
            clients = [opened.enter_context(socket.socket()) for _ in range(count)]
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", self.port))
            yield clients

    def head(self, path: str, size: int, method: str = "POST", headers: Mapping[str, str] | None = None) -> bytes:
        """Return the head of a request."""
        key = self.key if self.keys == 1 else f"{self.key}-{random.randrange(self.keys)}"
        given = {
            "Host": "x", "Content-Type": "application/json", "Content-Length": size,
            "Authorization": f"Bearer {key}", **(headers or {}),
        }  # fmt: skip
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> str:
        """Send a body, and read the answer to its end; returns and counts its status."""
        if self.alone and isinstance(body, dict) and "max_tokens" in body:
            body = {**body, "max_tokens": 1}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.raw(self.head(path, len(content), headers=headers) + content)

    async def raw(self, data: bytes) -> str:
        """Send bytes and read one answer; returns and counts its status, or how the connection ended."""
        answer = await self.ask(data)
        return answer[9:12].decode() if answer.startswith(b"HTTP/") else answer.decode()

    async def ask(self, data: bytes) -> bytes:
        """Send bytes, count the status of the answer, and return its beginning, or how the connection ended."""
        answer, begin = b"", time.monotonic()
        try:
            async with asyncio.timeout(SECONDS), self.connection() as (reader, writer):
                writer.write(data)
                answer = await _answer(reader)
            outcome = answer[9:12].decode()
            self.slowest = max(self.slowest, time.monotonic() - begin)
        except TimeoutError:
            outcome = f"none in {SECONDS:.0f} s"
        except (OSError, asyncio.IncompleteReadError):
            outcome = "closed"
        self.outcomes[outcome] += 1
        if outcome in ("429", "503", "closed"):
            await asyncio.sleep(0.02)  # so that the attacking process does not only compute itself
        return answer or outcome.encode()


def answer_of(answer: bytes) -> dict[str, Any]:
    """Return the JSON object in an answer; an empty one if it has none."""
    try:
        value = json.loads(answer.partition(b"\r\n\r\n")[2])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


async def _answer(reader: asyncio.StreamReader) -> bytes:
    """Return an answer's head, and its body if that is short; other bytes are read and dropped."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: *(\d+)\r\n", head, re.IGNORECASE)
    if length is not None and int(length[1]) <= _KEPT:
        return head + await reader.readexactly(int(length[1]))
    while await reader.read(1 << 16):
        if reader.at_eof():
            break
        if await _quiet(reader):
            break
    return head


async def _quiet(reader: asyncio.StreamReader) -> bool:
    """Return True if nothing more comes for a moment, as after a complete answer on a kept connection."""
    try:
        async with asyncio.timeout(0.3):
            while not reader.at_eof():
                if not await reader.read(1 << 16):
                    return True
    except TimeoutError:
        return True
    return True
