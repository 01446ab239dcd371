"""Attacks on the thread that answers probes and scrapes, which need no key: what begins like a probe and is none."""

from __future__ import annotations

import asyncio

from bench.hostile.kinds import Attack, held, in_turn
from bench.hostile.wire import Target

_LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


def sent(*kinds: bytes, count: int) -> Attack:
    """Users that send one of these after another, each on a new connection."""

    async def attack(target: Target) -> None:
        await in_turn(target, kinds, count)

    return attack


async def bursts(target: Target) -> None:
    """Open 6,000 connections without a pause, more than the kernel keeps until they are accepted, and close them."""
    while target.open:
        with target.sockets(6000):
            await asyncio.sleep(1)
        target.outcomes["6,000 opened"] += 1


PROBES: dict[str, Attack] = {
    "half a probe on 2,000 connections": held(lambda _: _LIVE, 2000),
    "one letter on 2,000 connections": held(lambda _: b"G", 2000),
    "500 probes in a pipeline on 200 connections": sent((_LIVE + b"\r\n") * 500, count=200),
    "probes by 1,500 clients": sent(_LIVE + b"\r\n", count=1500),
    "odd probes and scrapes by 1,500 clients": sent(
        b"GET /health/live?x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health/adapters HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        count=1500,
    ),
    "6,000 connections at once": bursts,
    "probes with bodies of 6 MB": sent(
        _LIVE + _CHUNKED + (b"10000\r\n" + b"x" * 65_536 + b"\r\n") * 100 + b"0\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 6000000\r\n\r\n" + b"x" * 6_000_000,
        count=16,
    ),
    "probes with trailers without end": sent(_LIVE + _CHUNKED + b"0\r\n" + b"X-T: y\r\n" * 100_000, count=16),
    "probes with heads of 60 KB": sent(
        b"GET /health/live?" + b"x" * 60_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(5000)) + b"\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 63_000 + b"\r\n\r\n",
        count=64,
    ),
}  # fmt: skip
