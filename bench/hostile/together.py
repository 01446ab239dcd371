"""Attacks by very many kept connections that all do the same at the same moment, several times."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

from bench.hostile.bodies import repeated_tools
from bench.hostile.kinds import Attack, posts, unread
from bench.hostile.wire import Target

TEXT = "/v1/completions"
_CHUNKED = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
_HEADERS = b"a:\r\n" * 7500
_CHUNKS = b"1\r\nx\r\n" * 1020


def together(first: bytes, then: Callable[[Target], bytes], count: int) -> Attack:
    """Return an attack by connections that send the beginning of a request, and the rest of it all at once."""

    async def attack(target: Target) -> None:
        rest = then(target)
        while target.open:
            with target.sockets(count) as clients:
                await asyncio.sleep(1)
                for data in (first, rest):
                    for client in clients:
                        with contextlib.suppress(OSError):
                            client.send(data)
                    await asyncio.sleep(1)
            target.outcomes[f"{count} sent"] += 1

    return attack


async def leaving(target: Target) -> None:
    """500 clients that read streams, and all leave at the same moment."""
    body = json.dumps({"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}).encode()
    data = target.head(TEXT, len(body)) + body
    while target.open:
        with target.sockets(500) as clients:
            for client in clients:
                await asyncio.sleep(0)
                with contextlib.suppress(OSError):
                    client.send(data)
            await asyncio.sleep(2)
        target.outcomes["500 left"] += 1


def many_answers(number: int) -> dict[str, Any]:
    """Return a request for 128 answers to one prompt of 8,000 tokens, none of which the prefix cache has."""
    chance = random.Random(number)
    return {"prompt": [chance.randrange(300, 40_000) for _ in range(8000)], "n": 128, "max_tokens": 100}


def same_prompt(number: int) -> dict[str, Any]:
    """Return a request for one answer to one of two prompts of 8,000 tokens, which the prefix cache has."""
    return {"prompt": many_answers(number % 2)["prompt"], "max_tokens": 100, "ignore_eos": True}


TOGETHER: dict[str, Attack] = {
    "heads of 7,500 lines on 1,000 connections at once": together(
        b"G", lambda _: b"ET /v1/models HTTP/1.1\r\nHost: x\r\n" + _HEADERS + b"\r\n", 1000
    ),
    "trailers of 7,500 lines on 1,000 connections at once": together(
        b"P", lambda _: _CHUNKED[1:] + b"\r\n2\r\n{}\r\n0\r\n" + _HEADERS + b"\r\n", 1000
    ),
    "1,020 chunks on 1,000 connections at once": together(b"P", lambda _: _CHUNKED[1:] + b"\r\n" + _CHUNKS, 1000),
    "heads of 30 KB on 1,000 connections at once": together(
        b"G", lambda _: b"ET /v1/models HTTP/1.1\r\nHost: x\r\na:" + b" y" * 15_000 + b"\r\n\r\n", 1000
    ),
    "requests on 3,000 kept connections at once": together(
        b"G", lambda target: target.head("/v1/models", 0, "GET")[1:] * 3, 3000
    ),
    "500 streams that are left at once": leaving,
    "128 answers to each of 24 prompts of 8,000 tokens": posts(TEXT, many_answers, 24),
    "first tokens of 16 answers to prompts of 8,000 tokens": posts(
        TEXT, lambda n: {**many_answers(n), "n": 16, "max_tokens": 1}, 24
    ),
    "two prompts of 8,000 tokens by 48 clients": posts(TEXT, same_prompt, 48),
    "8 MB of tools in streams that are not read": unread("/v1/responses", repeated_tools(1), 24),
}
"""Attacks by name, as in `attacks.py`."""
