"""Attacks by input that no request has read yet, and by answers and files that their clients do not read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable

from bench.hostile.kinds import Attack, users
from bench.hostile.stored import BATCHES, CHAT, FILES, line, stored_file
from bench.hostile.wire import Target

TEXT, RESPONSES = "/v1/completions", "/v1/responses"


def burst(data: Callable[[Target], bytes], count: int) -> Attack:
    """Return an attack by `count` connections that all send the same bytes at the same moment, each second."""

    async def attack(target: Target) -> None:
        sent = data(target)

        async def user(_: int) -> None:
            while target.open:
                with contextlib.suppress(OSError, TimeoutError):
                    async with target.connection() as (reader, writer), asyncio.timeout(4):
                        writer.write(sent)
                        while target.open and await reader.read(1 << 16):
                            pass
                target.outcomes["ended" if target.open else "held to the end"] += 1
                await asyncio.sleep(1)

        await users(count, user)

    return attack


def pipeline(target: Target) -> bytes:
    """Return 3,000 requests with a wrong key."""
    return target.head("/v1/models", 0, "GET", {"Authorization": "Bearer sk-wrong"}) * 3000


def large_body(target: Target) -> bytes:
    """Return a request with the first 250 KB of its body."""
    return target.head("/tokenize", 8 << 20) + b'{"prompt": "' + b"x" * 250_000


def single_bytes(begin: Callable[[Target], bytes], count: int) -> Attack:
    """Return an attack by connections that send one byte in each packet, without a pause."""

    async def attack(target: Target) -> None:
        sent = begin(target)

        async def user(_: int) -> None:
            while target.open:
                with contextlib.suppress(OSError):
                    async with target.connection() as (reader, writer):
                        writer.write(sent)
                        while target.open and not writer.is_closing() and not reader.at_eof():
                            writer.write(b"x")
                            await asyncio.sleep(0)
                target.outcomes["ended" if target.open else "held to the end"] += 1
                await asyncio.sleep(0.05)

        await users(count, user)

    return attack


async def unread(target: Target, data: bytes, count: int) -> None:
    """Send bytes on `count` connections, and read no answers."""

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError):
                async with target.connection() as (_, writer):
                    writer.transport.get_extra_info("socket").setsockopt(1, 8, 4096)  # SO_RCVBUF
                    writer.write(data)
                    while target.open and not writer.is_closing():
                        await asyncio.sleep(1)
            target.outcomes["dropped" if target.open else "held to the end"] += 1

    await users(count, user)


async def unread_files(target: Target) -> None:
    """2,000 clients that ask for a stored file and do not read it."""
    path = await stored_file(target, b"x" * (50 << 20))
    await unread(target, target.head(f"{path}/content", 0, "GET"), 2000)


async def downloads(target: Target) -> None:
    """200 clients that read a stored file as fast as they can."""
    path = await stored_file(target, b"x" * (50 << 20))

    async def user(_: int) -> None:
        while target.open:
            await target.raw(target.head(f"{path}/content", 0, "GET"))

    await users(200, user)


async def lists_of_files(target: Target) -> None:
    """600 clients that ask for a list of files with long names, and do not read it."""
    made: list[str] = []

    async def maker(_: int) -> None:
        while target.open and len(made) < 900:
            made.append(await stored_file(target, b"{}\n", b"\xf0\x9f\x92\xa9" * 250))

    target.until -= 3
    await users(12, maker)
    target.until += 3
    await unread(target, target.head(f"{FILES}?limit=10000", 0, "GET") * 3, 600)


async def lists_of_batches(target: Target) -> None:
    """300 clients that ask for a list of batches with the largest metadata, and do not read it."""
    path = await stored_file(target, b"".join(line(each)[:-2] + b",\n" for each in range(60)))
    metadata = {f"{each:064d}": "\u4e00" * 512 for each in range(16)}
    asked = {
        "input_file_id": path.rpartition("/")[2], "endpoint": CHAT, "completion_window": "24h", "metadata": metadata
    }  # fmt: skip
    body = json.dumps(asked, ensure_ascii=False).encode()
    target.until -= 3
    for _ in range(100):
        if target.open:
            await target.raw(target.head(BATCHES, len(body)) + body)
    target.until += 3
    await unread(target, target.head(f"{BATCHES}?limit=100", 0, "GET") * 3, 300)


async def short_batches(target: Target) -> None:
    """Batches of one wrong line, each of which leaves a file with its error."""
    path = await stored_file(target, line(1, max_tokens=-1))
    asked = {"input_file_id": path.rpartition("/")[2], "endpoint": CHAT, "completion_window": "24h"}
    body = json.dumps(asked).encode()

    async def user(_: int) -> None:
        while target.open:
            await target.raw(target.head(BATCHES, len(body)) + body)

    await users(16, user)


_REPORTED = {"stream": True, "top_logprobs": 20, "max_output_tokens": 8000, "ignore_eos": True}


async def reported(target: Target) -> None:
    """Streams of /v1/responses with log probabilities, all of which the last events repeat."""

    async def user(number: int) -> None:
        body = json.dumps({"input": f"{number}", **_REPORTED}).encode()
        while target.open:
            await target.raw(target.head(RESPONSES, len(body)) + body)

    await users(40, user)


async def left_behind(target: Target) -> None:
    """Requests for long answers, with the beginning of another request behind them; their clients leave."""

    async def user(number: int) -> None:
        while target.open:
            number += 16
            body = json.dumps({"prompt": f"{number}", "max_tokens": 4000, "ignore_eos": True}).encode()
            with contextlib.suppress(OSError):
                async with target.connection() as (_, writer):
                    writer.write(target.head(TEXT, len(body)) + body)
                    await asyncio.sleep(0.3)
                    writer.write(b"\r\n")
                    await asyncio.sleep(0.1)
            target.outcomes["left"] += 1

    await users(16, user)


async def cut_streams(target: Target) -> None:
    """Streams of which clients read exactly N bytes, then close, reset, or stay without reading."""
    asked = {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True, "logprobs": 5}
    body = json.dumps(asked).encode()

    async def user(number: int) -> None:
        while target.open:
            number += 48
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(4), target.connection() as (reader, writer):
                    writer.write(target.head(TEXT, len(body)) + body)
                    await reader.readexactly(1 + number * 7 % 3000)
                    if number % 3 == 0:
                        writer.write_eof()
                        await asyncio.sleep(1)
                    elif number % 3 == 1:
                        await asyncio.sleep(2)
                    target.outcomes["left"] += 1

    await users(48, user)


UNREAD: dict[str, Attack] = {
    "pipelines of 400 KB on 1,500 connections": burst(pipeline, 1500),
    "250 KB of a body on 1,500 connections": burst(large_body, 1500),
    "bodies in single bytes on 3,000 connections": single_bytes(lambda target: target.head("/tokenize", 8 << 20), 3000),
    "heads in single bytes on 1,000 connections": single_bytes(lambda _: b"GET /v1/models HTTP/1.1\r\nX: ", 1000),
    "a stored file that 2,000 clients do not read": unread_files,
    "a stored file at full speed": downloads,
    "lists of files that are not read": lists_of_files,
    "lists of batches that are not read": lists_of_batches,
    "batches of one wrong line": short_batches,
    "log probabilities in streams of /v1/responses": reported,
    "clients that leave with another request begun": left_behind,
    "streams cut after N bytes": cut_streams,
}
