"""Attacks by batches whose lines have odd ids, addresses and bodies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bench.hostile.kinds import Attack, users
from bench.hostile.stored import BATCHES, line, stored_file
from bench.hostile.wire import Target, answer_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def _odd_lines() -> tuple[bytes, ...]:
    asked: dict[str, Any] = {
        "custom_id": "c",
        "method": "POST",
        "url": CHAT,
        "body": {"messages": [{"role": "user", "content": "x"}]},
    }
    odd: tuple[dict[str, Any], ...] = (
        {"custom_id": "\ud800"},
        {"custom_id": "x" * 1_000_000},
        {"custom_id": "\r\n\u2028"},
        {"custom_id": 1},
        {"url": "/v1/../metrics"},
        {"url": f"{CHAT}?x=1"},
        {"url": "http://127.0.0.1/"},
        {"url": "/v1/load_lora_adapter"},
        {"method": "DELETE"},
        {"method": ["POST"]},
        {"body": []},
        {"body": {"stream": True, **asked["body"]}},
        {"body": {"timeout": 1e-9, **asked["body"]}},
        {"body": {"guided_regex": "(a|b)*a(a|b){900}", **asked["body"]}},
        {"body": {"priority": -(2**40), **asked["body"]}},
        {"body": {**asked["body"], "n": 128, "max_tokens": 9}},
    )
    lines = b"".join(
        json.dumps({**asked, "custom_id": f"c{at}", **each}).encode() + b"\n" for at, each in enumerate(odd)
    )
    return (
        lines,
        b"\xef\xbb\xbf" + lines,
        lines.replace(b"\n", b"\r\n"),
        lines.replace(b"\n", b"\x00\n"),
        b"x" * (40 << 20),
        line(1) * 20_000,
        b'{"custom_id": "a", "custom_id": "b"}\n' * 50_000,
        b"\xff\xfe" + lines,
        b"".join(line(number, messages=[{"role": "user", "content": "x" * 900_000}]) for number in range(30)),
    )


async def odd_lines(target: Target) -> None:
    """Batches of lines with odd ids, addresses and bodies, in odd encodings; many batches of one file."""
    paths = [await stored_file(target, each, b"..\\..%2f\x00" + b"'; rm") for each in _odd_lines()]

    async def user(number: int) -> None:
        while target.open:
            number += 1
            asked = {
                "input_file_id": paths[number % len(paths)].rpartition("/")[2],
                "endpoint": CHAT,
                "completion_window": ("24h", "0h", "9" * 300 + "h")[number % 97 % 3],
                "metadata": {"a": "b" * 512},
                "output_expires_after": {"anchor": "created_at", "seconds": (3600, -1, 10**18)[number % 89 % 3]},
            }
            body = json.dumps(asked).encode()
            batch = answer_of(await target.ask(target.head(BATCHES, len(body)) + body)).get("id")
            if number % 5 == 0:
                await target.raw(target.head(f"{BATCHES}/{batch}/cancel", 0))

    await users(8, user)
    listed = answer_of(await target.ask(target.head(f"{BATCHES}?limit=100", 0, "GET"))).get("data", [])
    await asyncio.gather(*(target.raw(target.head(f"{BATCHES}/{each['id']}/cancel", 0)) for each in listed))
    await asyncio.gather(*(target.raw(target.head(path, 0, "DELETE")) for path in paths))


BATCH_LINES: dict[str, Attack] = {
    "batches of odd lines": odd_lines,
}
"""Attacks by name, as in `attacks.py`."""
