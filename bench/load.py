"""An HTTP client for benchmarks that uses little CPU time, since it shares the cores with the server that it measures.

It speaks HTTP/1.1 over asyncio's streams: one request at a time per connection, connections kept open and reused,
bodies encoded beforehand. It parses only the answers that octavo-engine sends.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could"
)
"""Frequent words of one token each, in nearly every vocabulary."""


@dataclass(slots=True)
class Reply:
    """The outcome of one request; times are monotonic seconds."""

    asked: float
    """When the request was due: a delay of the client itself counts as well."""
    sent: float = 0.0
    first_token: float = 0.0
    """When the first piece of the body arrived."""
    ended: float = 0.0
    status: int = 0
    """The HTTP status; 0 if no complete answer arrived."""
    retry_after: str | None = None
    tokens: int = 0
    """Tokens of a complete answer; not counted in streams."""
    code: str | None = None
    """The code of the error, or the reason why the answer could not be read completely."""


def body_of(prompt: str | list[int], max_tokens: int, *, stream: bool = False) -> bytes:
    """Return the body of a greedy completion request with exactly `max_tokens` answer tokens."""
    asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": stream}
    return json.dumps(asked).encode()


def prompts(count: int, words: int, seed: int) -> list[str]:
    """Return random prompts without a common prefix."""
    randomness = random.Random(seed)
    return [" ".join(randomness.choices(_WORDS.split(), k=words)) for _ in range(count)]


@dataclass(slots=True)
class Client:
    """The connections to one server."""

    port: int
    timeout: float = 120.0
    """Seconds after which a request counts as hung."""
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def ask(self, body: bytes, key: str = "none", asked: float | None = None) -> Reply:
        """Send one request to /v1/completions; failures of the server are recorded in the reply and never raised."""
        reply = Reply(time.monotonic() if asked is None else asked)
        try:
            async with asyncio.timeout(self.timeout):
                await self._exchange(body, key, reply)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            reply.status, reply.code = 0, type(error).__name__
        reply.ended = time.monotonic()
        return reply

    async def _exchange(self, body: bytes, key: str, reply: Reply) -> None:
        reader, writer = self._kept() or await asyncio.open_connection("127.0.0.1", self.port)
        kept = False
        try:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            reply.sent = time.monotonic()
            writer.write(head.encode() + body)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            reply.retry_after = headers.get("retry-after")
            if "content-length" in headers:
                content = await reader.readexactly(int(headers["content-length"]))
                reply.first_token = time.monotonic()
            else:
                content = await _chunks(reader, reply)
            _judge(int(lines[0].split(" ")[1]), content, reply)
            kept = headers.get("connection") != "close"
        finally:
            if kept:
                self._idle.append((reader, writer))
            else:
                writer.close()

    def _kept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return an open connection that was used before, if there is one."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof():
                return reader, writer
            writer.close()
        return None

    def close(self) -> None:
        """Close all connections that are not in use."""
        for _, writer in self._idle:
            writer.close()


async def _chunks(reader: asyncio.StreamReader, reply: Reply) -> bytes:
    content = b""
    while size := int((await reader.readuntil(b"\r\n")), 16):
        content += (await reader.readexactly(size + 2))[:-2]
        reply.first_token = reply.first_token or time.monotonic()
    await reader.readexactly(2)
    return content


def _judge(status: int, content: bytes, reply: Reply) -> None:
    """Record status and tokens, or the error's code, from a complete answer or stream."""
    if status != 200:
        reply.status, reply.code = status, json.loads(content)["error"]["code"]
    elif content.startswith(b"{"):
        reply.status, reply.tokens = status, json.loads(content)["usage"]["completion_tokens"]
    elif content.endswith(b"data: [DONE]\n\n"):
        reply.status = status


async def tokens_per_second(port: int, users: int, seconds: float, words: int, tokens: int) -> float:
    """Measure the output tokens/s of `users` clients that each send one request after another; RuntimeError on failure.

    Prompts have `words` words and answers `tokens` tokens.
    """
    start = time.monotonic()

    async def user(prompt: str) -> int:
        client, done = Client(port), 0
        while time.monotonic() - start < seconds:
            reply = await client.ask(body_of(prompt, tokens))
            if reply.status != 200:
                raise RuntimeError(f"a request failed with status {reply.status}")
            done += tokens
        client.close()
        return done

    generated = await asyncio.gather(*map(user, prompts(users, words, 0)))
    return sum(generated) / (time.monotonic() - start)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile; NaN if there are no values."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)] if ordered else float("nan")
