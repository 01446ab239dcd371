"""Floods: very many small requests at once, on many connections, faster than they can be answered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Callable

from bench.hostile.kinds import Attack, users
from bench.hostile.wire import Target

TEXT = "/v1/completions"
_RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that ends a connection with a reset, even if bytes have not been sent or read."""


def flood(data: Callable[[Target], bytes], connections: int, *, read: bool = True) -> Attack:
    """Return an attack that sends the same bytes again and again on many connections, without waiting for answers."""

    async def attack(target: Target) -> None:
        sent = data(target)

        async def user(_: int) -> None:
            while target.open:
                with contextlib.suppress(OSError):
                    async with target.connection() as (reader, writer):
                        reading = asyncio.create_task(_count(target, reader)) if read else None
                        while target.open and not writer.is_closing() and not reader.at_eof():
                            writer.write(sent)
                            with contextlib.suppress(TimeoutError):
                                async with asyncio.timeout(1):
                                    await writer.drain()
                        if reading is not None:
                            reading.cancel()
                target.outcomes["connection ended" if target.open else "held to the end"] += 1
                await asyncio.sleep(0.05)

        await users(connections, user)

    return attack


async def _count(target: Target, reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(1 << 16):
            for status in (b"200", b"400", b"401", b"404", b"414", b"429", b"431", b"500", b"503"):
                if found := part.count(b"HTTP/1.1 " + status):
                    target.outcomes[status.decode()] += found


def without_key(target: Target) -> bytes:
    """Return 100 requests with an unknown key."""
    return target.head("/v1/models", 0, "GET", {"Authorization": "Bearer sk-wrong"}) * 100


def tokenized(target: Target) -> bytes:
    """Return 100 requests that each take a little work."""
    body = b'{"prompt": "Hi"}'
    return (target.head("/tokenize", len(body)) + body) * 100


def versions(target: Target) -> bytes:
    """Return 500 requests that each take hardly any work."""
    return target.head("/version", 0, "GET") * 500


def preflights(target: Target) -> bytes:  # noqa: ARG001  (browsers ask without a key)
    """Return 30 preflight requests, each with 3,000 names of headers."""
    names = ", ".join(f"x-{number}" for number in range(3000))
    asked = (
        f"Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: {names}"
    )
    return f"OPTIONS {TEXT} HTTP/1.1\r\nHost: x\r\n{asked}\r\n\r\n".encode() * 30


def long_queries(target: Target) -> bytes:
    """Return 12 requests whose query is too long."""
    return target.head("/v1/models?" + "a" * 9000, 0, "GET") * 12


async def resets(target: Target) -> None:
    """Reset connections at every stage: in the head or body, while the request is prepared, queued or answered."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    data = target.head(TEXT, len(body)) + body
    loop = asyncio.get_running_loop()

    async def user(number: int) -> None:
        chance = random.Random(number)
        while target.open:
            client = socket.socket()
            client.setblocking(False)
            try:
                await loop.sock_connect(client, ("127.0.0.1", target.port))
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                await loop.sock_sendall(client, data[: chance.choice((20, len(data) - 30, len(data), len(data)))])
                await asyncio.sleep(chance.choice((0, 0, 0.01, 0.1, 0.4)))
                target.outcomes["reset"] += 1
            except OSError:
                target.outcomes["refused"] += 1
            finally:
                client.close()

    await users(60, user)
