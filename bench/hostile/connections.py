"""Attacks by connections and by HTTP itself, independent of what the requests ask for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from typing import Any

from bench.hostile.kinds import in_turn, users
from bench.hostile.wire import SECONDS, Target


async def pipelined(target: Target) -> None:
    """Send 1,000 requests at once on one connection."""

    kinds = (target.head("/tokenize", 15) + b'{"prompt": "Hi"}', target.head("/v1/models", 0, "GET"))
    await in_turn(target, [each * 1000 for each in kinds], 4)


async def tiny_chunks(target: Target) -> None:
    """Send bodies of a megabyte in chunks of one byte."""
    head = target.head("/tokenize", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    body = b'{"prompt": "' + b"x" * (1 << 20) + b'"}'
    data = head + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"

    await in_turn(target, [data], 4)


def slow_trailers(target: Target) -> bytes:
    """A chunked body that is complete, and the beginning of a trailer."""
    head = target.head("/tokenize", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return head + b'e\r\n{"prompt":"x"}\r\n0\r\nX-T: '


_LENGTHS = (
    b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked, identity", b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked;q=1", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked,chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"Transfer-Encoding : chunked",
    b"Transfer_Encoding: chunked", b" Transfer-Encoding: chunked", b"Content-Length: +2", b"Content-Length: 2,2",
    b"Content-Length: 0x2", b"Content-Length: 1_0", b"Content-Length:", b"Content-Length: \xb2",
    b"Content-Length: 99999999999999999999999", b"Content-Length: -1", b"Content-Length: 2\x00",
    b"X\r\nContent-Length: 2", b": x\r\nContent-Length: 2", b"X\x01: y\r\nContent-Length: 2",
)  # fmt: skip
_CHUNKS = (
    b"2 \r\n{}\r\n0\r\n\r\n", b"2\n{}\n0\n\n", b"+2\r\n{}\r\n0\r\n\r\n", b"0x2\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}XX0\r\n\r\n", b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
    b"2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
    b"2\r\n{}\r\n0\r\n folded\r\n\r\n", b"2\r\n{}\r\n0\r\nX\r\n\r\n", b'2;a="\r\n{}\r\n0\r\n\r\n',
    b"2\r\r\n{}\r\n0\r\n\r\n", b"2;a\rb\r\n{}\r\n0\r\n\r\n", b"2;a\0b\r\n{}\r\n0\r\n\r\n",
)  # fmt: skip
_BEGINNINGS = (
    b"POST /tokenize HTTP/0.9", b"POST /tokenize HTTP/2.0", b"POST /tokenize http/1.1", b"POST //x/tokenize HTTP/1.1",
    b"POST http://a@b/tokenize HTTP/1.1", b"POST http:// HTTP/1.1", b"POST tokenize HTTP/1.1", b"POST  HTTP/1.1",
    b"POST /\x00 HTTP/1.1", b"POST /tokenize%00 HTTP/1.1", b"POST /../tokenize HTTP/1.1", b"CONNECT x:443 HTTP/1.1",
    b"OPTIONS * HTTP/1.1", b"TRACE /tokenize HTTP/1.1", b"G" * 70_000 + b" / HTTP/1.1", b"PRI * HTTP/2.0\r\n\r\nSM",
)  # fmt: skip


async def more_letters(target: Target) -> None:
    """Odd lengths, chunks and request lines, each with another request behind it."""
    head, behind = target.head("/tokenize", 2), target.head("/v1/models", 0, "GET")
    chunked = head.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")
    kinds = [
        *(head.replace(b"Content-Length: 2", each) + b"2\r\n{}\r\n0\r\n\r\n" + behind for each in _LENGTHS),
        *(chunked + each + behind for each in _CHUNKS),
        *(head.replace(b"POST /tokenize HTTP/1.1", each) + b"{}" + behind for each in _BEGINNINGS),
    ]

    await in_turn(target, kinds, 8)


async def heads_on_kept_connections(target: Target) -> None:
    """Complete a request on each of 600 connections, and then send the next one's head byte by byte."""
    body = json.dumps({"prompt": "x"}).encode()
    data = target.head("/tokenize", len(body)) + body

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with target.connection() as (reader, writer):
                    writer.write(data)
                    async with asyncio.timeout(SECONDS):
                        await reader.readuntil(b"}")
                    for byte in data:
                        if not target.open or reader.at_eof():
                            break
                        writer.write(bytes((byte,)))
                        await asyncio.sleep(0.4)
                target.outcomes["closed" if target.open else "held to the end"] += 1

    await users(600, user)


_CANCELLED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "x", "max_tokens": 50, "stream": True, "n": 3}),
    ("/v1/embeddings", {"input": ["lorem ipsum dolor"] * 200}),
    ("/v1/rerank", {"query": "x", "documents": ["lorem ipsum dolor"] * 300}),
    ("/v1/responses", {"input": "lorem ipsum", "stream": True, "max_output_tokens": 40}),
    (
        "/v1/messages",
        {"model": "smollm2", "max_tokens": 30, "stream": True, "messages": [{"role": "user", "content": "x"}]},
    ),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "guided_regex": "[a-z]{1,40}"}),
    ("/tokenize", {"prompt": "lorem ipsum dolor " * 9000}),
)


async def cancelled_at_any_byte(target: Target) -> None:
    """Requests of all kinds whose client closes or resets the connection at any byte of the request or the answer."""

    async def user(number: int) -> None:
        chance = random.Random(number)
        while target.open:
            path, asked = chance.choice(_CANCELLED)
            body = json.dumps(asked).encode()
            data = target.head(path, len(body)) + body
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with target.connection() as (reader, writer), asyncio.timeout(5):
                    if chance.random() < 0.3:
                        writer.write(data[: chance.randrange(len(data))])
                        await asyncio.sleep(chance.random() / 5)
                    else:
                        writer.write(data)
                        await reader.readexactly(chance.randrange(1, 6000))
                    if chance.random() < 0.5:
                        ours = writer.transport.get_extra_info("socket")
                        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            target.outcomes["left"] += 1

    await users(64, user)


async def all_at_once(target: Target) -> None:
    """500 clients whose requests wait or run, and that all leave at the same moment, again and again."""
    body = json.dumps({"prompt": [100] * 700, "max_tokens": 900, "ignore_eos": True}).encode()
    data = target.head("/v1/completions", len(body)) + body
    while target.open:
        opened = []
        with contextlib.suppress(OSError):
            for _ in range(500):
                _, writer = await asyncio.open_connection("127.0.0.1", target.port)
                writer.write(data)
                opened.append(writer)
        await asyncio.sleep(1)
        for writer in opened:
            writer.transport.abort()
        target.outcomes["left"] += len(opened)


async def upgrades(target: Target) -> None:
    """Requests to speak WebSocket or HTTP/2, with bytes of these behind them."""
    kinds = [
        target.head(path, 0, "GET", {"Connection": "Upgrade", "Upgrade": protocol}) + b"\x00" * 200_000
        for path in ("/", "/v1/models", "/health/live", "/v1/realtime")
        for protocol in ("websocket", "h2c")
    ]

    await in_turn(target, kinds, 16)


async def half_closed(target: Target) -> None:
    """Send requests and close the sending half of the connection; half of the clients wait for the answer."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True}).encode()
    data = target.head("/v1/completions", len(body)) + body

    async def user(number: int) -> None:
        while target.open:
            with contextlib.suppress(OSError, TimeoutError):
                async with target.connection() as (reader, writer), asyncio.timeout(SECONDS):
                    writer.write(data)
                    writer.write_eof()
                    said = await reader.readuntil(b"\r\n\r\n") if number % 2 else b"HTTP/1.1 left"
                    while said.startswith(b"HTTP/1.1 100"):
                        said = await reader.readuntil(b"\r\n\r\n")
                    target.outcomes[said[9:13].decode().strip()] += 1
            await asyncio.sleep(0.1)

    await users(16, user)


async def endless_extensions(target: Target) -> None:
    """Send one chunk whose extension has 5 MB and no end; the 400 must reach a client that is still sending."""
    head = target.head("/tokenize", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")

    await in_turn(target, [head + b"1;" + b"x" * 5_000_000], 8)


async def chunk_extensions(target: Target) -> None:
    """Send chunks of one byte, each with a meaningless extension of 50 KB; or as meaningless trailers."""
    head = target.head("/tokenize", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    extended = head + (b"1;" + b"x" * 50_000 + b"\r\n \r\n") * 300 + b"0\r\n\r\n"
    trailed = head + b"2\r\n{}\r\n0\r\n" + b"X-Trailer: y\r\n" * 100_000 + b"\r\n"

    await in_turn(target, [extended, trailed], 8)


_LONG_TARGETS = (
    "/v1/models?" + "a=b&" * 8000, "/" + "x" * 60_000, "/" + "%2e%2e%2f" * 5000, "/v1/models/" + "%00%ff" * 5000,
    "/v1/models?" + "%" * 30_000, "/?" + "x" * 200_000, "http://" + "a" * 30_000 + "/v1/models", "*",
    "/v1/batches?limit=1e9", "/" + "/" * 30_000,
)  # fmt: skip


async def long_targets(target: Target) -> None:
    """Send requests whose targets are as long as allowed, and longer."""

    async def user(number: int) -> None:
        while target.open:
            path = _LONG_TARGETS[number % len(_LONG_TARGETS)]
            await target.raw(target.head(path, 0, ("GET", "HEAD", "OPTIONS", "DELETE")[number % 4]))
            number += 7

    await users(16, user)


async def expectations(target: Target) -> None:
    """Send heads that expect `100 Continue`, then a body in small pieces, or nothing."""
    head = target.head("/tokenize", 1 << 20, headers={"Expect": "100-continue"})

    async def user(number: int) -> None:
        while target.open:
            with contextlib.suppress(OSError, TimeoutError):
                async with target.connection() as (reader, writer), asyncio.timeout(1):
                    writer.write(head)
                    said = await reader.readline()
                    target.outcomes[said[9:12].decode() or "closed"] += 1
                    for _ in range(number % 3 * 100):
                        writer.write(b"x" * 100)
                        await asyncio.sleep(0.001)

    await users(100, user)


async def churn(target: Target) -> None:
    """Open and close as many connections as possible."""

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError):
                async with target.connection() as (_, writer):
                    writer.write(b"GET /version HTTP/1.1\r\n")
            target.outcomes["closed"] += 1

    await users(32, user)


async def scrapes(target: Target) -> None:
    """Request /metrics, /openapi.json, /v1/models and a probe without a pause."""

    paths = ("/metrics", "/health/ready", "/openapi.json", "/v1/models")
    await in_turn(target, [target.head(path, 0, "GET") for path in paths], 16)


async def scrape_flood(target: Target) -> None:
    """Send only scrapes, which need no key and are answered in the same thread as probes, on 64 connections."""

    await in_turn(target, [target.head("/metrics", 0, "GET")], 64)


_HEADERS = (
    "X-Request-Id: {:0128d}",
    "X-Request-Id: " + "/../" * 2000,
    "traceparent: 00-{0:032x}-{0:016x}-01",
    "traceparent: " + "0" * 8000,
    "Content-Type: application/json; charset={}",
    "X-Request-Timeout: " + "9" * 5000,
    "Accept: " + "a/b;q=0.1, " * 700,
    "Cookie: " + "; ".join(f"c{{0}}-{each}=x" for each in range(500)),
    "Expect: 100-continue",
    "Content-Encoding: gzip",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==",
)
"""Headers, in which `{}` is replaced by a number that differs in each request."""


async def odd_headers(target: Target) -> None:
    """Send headers as large as allowed, with values that logs, traces and metrics might keep."""
    body = json.dumps({"prompt": "Hi"}).encode()

    async def user(number: int) -> None:
        while target.open:
            name, _, value = _HEADERS[number % len(_HEADERS)].format(number).partition(": ")
            await target.raw(target.head("/tokenize", len(body), headers={name: value}) + body)
            number += 8

    await users(8, user)
