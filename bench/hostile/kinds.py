"""Kinds of attacks: actions that many users repeat at the same time until the attack is over."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from bench.hostile.wire import Target

Attack = Callable[[Target], Awaitable[None]]


async def users(count: int, user: Callable[[int], Awaitable[None]]) -> None:
    """Run `user` `count` times at once, each with its number."""
    await asyncio.gather(*(user(number) for number in range(count)))


async def in_turn(target: Target, kinds: Sequence[bytes], count: int) -> None:
    """Send these bytes by `count` users at once, each of whom sends one kind after another and reads the answers."""

    async def user(number: int) -> None:
        while target.open:
            await target.raw(kinds[number % len(kinds)])
            number += 1

    await users(count, user)


def posts(path: str, body: Callable[[int], Any], count: int = 8) -> Attack:
    """Return an attack by users that send one body after another, all of them different."""

    async def attack(target: Target) -> None:
        numbers = itertools.count()

        async def user(_: int) -> None:
            while target.open:
                await target.post(path, body(next(numbers)))

        await users(1 if target.alone else count, user)

    return attack


def held(data: Callable[[Target], bytes], count: int, pause: float = 0.0) -> Attack:
    """Return an attack by connections that send some bytes, then one every `pause` seconds, or no more if it is 0."""

    async def attack(target: Target) -> None:
        async def user(_: int) -> None:
            while target.open:
                with contextlib.suppress(OSError, TimeoutError):
                    async with target.connection() as (reader, writer):
                        writer.write(data(target))
                        while target.open and not reader.at_eof():
                            with contextlib.suppress(TimeoutError):
                                async with asyncio.timeout(pause or 1.0):
                                    await reader.read(1 << 16)
                            if pause:
                                writer.write(b"x")
                    target.outcomes["closed" if target.open else "held to the end"] += 1

        await users(count, user)

    return attack


def unread(path: str, body: dict[str, Any], count: int, pause: float = 0.0) -> Attack:
    """Return an attack by clients that do not read their answers, or 64 bytes every `pause` seconds."""
    content = json.dumps(body).encode()

    async def attack(target: Target) -> None:
        async def user(_: int) -> None:
            while target.open:
                with contextlib.suppress(OSError):
                    async with target.connection() as (reader, writer):
                        writer.transport.get_extra_info("socket").setsockopt(1, 8, 4096)  # SO_RCVBUF
                        writer.write(target.head(path, len(content)) + content)
                        while target.open and not writer.is_closing():
                            await asyncio.sleep(pause or 1.0)
                            if pause and not await reader.read(64):
                                break
                    target.outcomes["dropped" if target.open else "held to the end"] += 1

        await users(count, user)

    return attack
