"""Attacks by what TCP and HTTP allow and few clients do, such as urgent bytes, tiny segments and old versions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import socket
from collections.abc import Callable

from bench.hostile.kinds import Attack, in_turn, users
from bench.hostile.wire import SECONDS, Target

TEXT = "/v1/completions"
_SMALLEST = 88
"""The smallest TCP segments that Linux sends."""


async def spaces(target: Target) -> None:
    """Headers, trailers and chunk sizes of very many spaces, without a key, whose last byte is not allowed."""
    chunked = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    blank, kinds = b" " * 31_000, []
    for end in (b"\0", b"\x0b", b"\x0c", b"\x7f", b"\xff", b"\x01"):
        kinds += [
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX:" + blank + end + b"\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: " + b"a " * 15_000 + end + b"\r\n\r\n",
            b"GET /health/live HTTP/1.1\r\nX:" + blank[:3000] + end + b"\r\n\r\n",
            b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX:" + b"\t" * 31_000 + end + b"\r\n\r\n",
            chunked + b"\r\n1;" + blank + end + b"\n\r\n{",
            chunked + b"\r\n1" + blank + end + b"\r\n{",
            chunked + b"\r\n2\r\n{}\r\n0\r\nX:" + blank + end + b"\r\n\r\n",
        ]
    await in_turn(target, kinds, 8)


def client(*options: tuple[int, int, int], address: str = "") -> socket.socket:
    """Return a socket that is not connected, with socket options and an own address."""
    made = socket.socket()
    made.setblocking(False)
    for level, name, value in options:
        made.setsockopt(level, name, value)
    if address:
        made.bind((address, 0))
    return made


def by_sockets(data: Callable[[Target, int], bytes], count: int, *options: tuple[int, int, int]) -> Attack:
    """Return an attack by `count` sockets of many loopback addresses that send something and read one answer."""

    async def attack(target: Target) -> None:
        loop, numbers = asyncio.get_running_loop(), itertools.count()

        async def user(number: int) -> None:
            while target.open:
                address = f"127.{1 + number % 200}.{random.randrange(256)}.{1 + random.randrange(250)}"
                with contextlib.suppress(OSError, TimeoutError), client(*options, address=address) as ours:
                    async with asyncio.timeout(SECONDS):
                        await loop.sock_connect(ours, ("127.0.0.1", target.port))
                        await loop.sock_sendall(ours, data(target, next(numbers)))
                        said = await loop.sock_recv(ours, 1 << 16)
                        target.outcomes[said[9:12].decode() or "closed"] += 1
                await asyncio.sleep(0.01)

        await users(count, user)

    return attack


def small(target: Target, number: int) -> bytes:
    """Return a small request, or one with a wrong key."""
    body = json.dumps({"prompt": f"{number}"}).encode()
    headers = {"Authorization": f"Bearer sk-{number}"} if number % 2 else None
    return target.head("/tokenize", len(body), headers=headers) + body


def megabyte(target: Target, number: int) -> bytes:
    """Return a request of a megabyte."""
    body = json.dumps({"prompt": f"{number} " * 100_000}).encode()
    return target.head("/tokenize", len(body)) + body


async def urgent(target: Target) -> None:
    """Requests with urgent (out-of-band) bytes at many places, which a server that does not want them never reads."""
    loop = asyncio.get_running_loop()

    async def user(number: int) -> None:
        chance = random.Random(number)
        data = small(target, 2 * number)
        while target.open:
            with contextlib.suppress(OSError, TimeoutError), client() as ours:
                async with asyncio.timeout(2):
                    await loop.sock_connect(ours, ("127.0.0.1", target.port))
                    for part in (data[at : at + 20] for at in range(0, len(data), 20)):
                        await loop.sock_sendall(ours, part)
                        if chance.random() < 0.3:
                            ours.send(b"!", socket.MSG_OOB)
                    said = await loop.sock_recv(ours, 1 << 16)
                    target.outcomes[said[9:12].decode() or "closed"] += 1

    await users(40, user)


async def old_versions(target: Target) -> None:
    """HTTP/1.0 requests, kept alive and in pipelines, for streams that have no chunks then."""
    body = json.dumps({"prompt": "x", "max_tokens": 60, "stream": True, "n": 4, "ignore_eos": True}).encode()
    plain = (target.head(TEXT, len(body)) + body).replace(b"HTTP/1.1", b"HTTP/1.0")
    kept = plain.replace(b"Host: x", b"Host: x\r\nConnection: keep-alive")
    chunked = kept.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    await in_turn(target, [plain, kept * 50, chunked, kept.replace(b"Host: x\r\n", b"") * 3], 16)


async def unread_scrapes(target: Target) -> None:
    """1,500 clients that ask for /metrics with a tiny window, and read nothing."""

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError, TimeoutError):
                async with target.connection() as (_, writer):
                    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
                    while target.open and not writer.is_closing():
                        await asyncio.sleep(1)
            target.outcomes["dropped" if target.open else "held to the end"] += 1
            await asyncio.sleep(0.1)

    await users(1500, user)


def _keys(target: Target) -> list[dict[str, str]]:
    """Return headers with several keys, which contradict each other, or with keys of odd characters."""
    bearer, other = {"Authorization": f"Bearer {target.key}"}, "X-Api-Key: sk-wrong"
    return [
        {**bearer, "X-Api-Key": "sk-wrong"}, {"Authorization": "Bearer sk-wrong", "X-Api-Key": target.key},
        {"Authorization": f"Bearer {target.key}\r\nAuthorization: Bearer sk-wrong"},
        {"Authorization": f"Bearer sk-wrong\r\nAuthorization: Bearer {target.key}"},
        {"Authorization": "Bearer " + "\r\n".join(["x", *[other] * 90])}, {"Authorization": "Bearer " * 3000},
        {"Authorization": f"bEARER\t {target.key} "}, {"Authorization": "Bearer \xff\xfe" + "\xe9" * 9000},
        {"Authorization": f"Digest username={target.key}"}, {"Authorization": ""},
        {"Authorization": f"Bearer{target.key}"},
        {"X-Request-Id": "\x85\x1b[2J" * 2000, **bearer}, {"X-Request-Id": "a\tb\x07", **bearer},
    ]  # fmt: skip


async def several_keys_in_a_request(target: Target) -> None:
    """Requests with several keys."""
    body = json.dumps({"prompt": "x"}).encode()
    await in_turn(target, [target.head("/tokenize", len(body), headers=each) + body for each in _keys(target)], 24)


async def full_heads(target: Target) -> None:
    """Heads of exactly as many headers and bytes as are allowed, in pipelines on 300 connections."""
    names = "\r\n".join(f"X-{number:02d}: {'y' * 300}" for number in range(95))
    kinds = [
        target.head("/v1/models", 0, "GET", {"X": f"y\r\n{names}", **key}) * 4
        for key in ({}, {"Authorization": "Bearer sk-wrong"})
    ]
    await in_turn(target, kinds, 300)


async def unwanted_bodies(target: Target) -> None:
    """Bodies of 8 MB, of known length or in chunks, for routes and methods that have none, and with a wrong key."""
    large = b"x" * (8 << 20)
    chunks = b"".join(b"10000\r\n" + large[: 1 << 16] + b"\r\n" for _ in range(128)) + b"0\r\n\r\n"
    kinds = []
    for method, path in (("GET", "/v1/models"), ("DELETE", "/v1/files/x"), ("OPTIONS", TEXT), ("PUT", TEXT),
                         ("POST", "/v1/batches"), ("POST", "/v1/load_lora_adapter"), ("POST", "/nowhere")):  # fmt: skip
        for headers in ({}, {"Authorization": "Bearer sk-wrong"}):
            head = target.head(path, len(large), method, headers)
            kinds += [head + large, head.replace(b"Content-Length: 8388608", b"Transfer-Encoding: chunked") + chunks]
    await in_turn(target, kinds, 24)


SOCKETS: dict[str, Attack] = {
    "headers and chunk sizes of spaces (G, M)": spaces,
    "requests from thousands of addresses": by_sockets(small, 300),
    "bodies of a megabyte in segments of 88 bytes": by_sockets(
        megabyte, 24, (socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SMALLEST)
    ),
    "urgent bytes": urgent,
    "HTTP/1.0 in pipelines, and for streams": old_versions,
    "scrapes that 1,500 clients do not read": unread_scrapes,
    "several keys in a request (E)": several_keys_in_a_request,
    "heads as large as allowed on 300 connections": full_heads,
    "8 MB bodies that no route wants": unwanted_bodies,
}
"""Attacks by name, as in `attacks.py`."""
