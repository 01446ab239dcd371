"""Attacks by clients that claim to be someone, or to be important: names, ids and priorities of their own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from typing import Any

from bench.hostile.kinds import Attack, users
from bench.hostile.wire import Target

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def one_id(target: Target) -> None:
    """64 requests at once with the same ids, half of which leave in the middle."""
    asked = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True, "request_id": "one", "n": 4}
    body = json.dumps(asked).encode()
    data = target.head(TEXT, len(body), headers={"X-Request-Id": "one"}) + body

    async def user(number: int) -> None:
        while target.open:
            if number % 2:
                await target.raw(data)
                continue
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(3), target.connection() as (reader, writer):
                    writer.write(data)
                    await reader.readexactly(400)
                    target.outcomes["left"] += 1

    await users(64, user)


def labels(number: int) -> tuple[str, dict[str, str], dict[str, Any]]:
    """Return a path, headers and a body with new values of all that a server might count by."""
    name = f"{number:x}-{number * 2654435761 % 2**32:x}"
    metadata = {f"{name}-{each}": name for each in range(16)}
    fields = {"user": name, "safety_identifier": name, "prompt_cache_key": name, "metadata": metadata}
    headers = {
        "User-Agent": f"agent/{name}",
        "X-Request-Id": name,
        "X-Tenant": name,
        "X-User-Id": name,
        "X-Forwarded-For": f"10.{number % 256}.{number // 256 % 256}.1",
        "X-Real-Ip": f"10.0.{number % 256}.1",
        "X-Session-Id": name,
        "OpenAI-Organization": name,
        "OpenAI-Project": name,
        "Origin": f"https://{name}.example",
        "Referer": f"https://{name}.example/",
        "Traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01",
        "Tracestate": f"{name}=1",
        "Baggage": f"tenant={name}",
    }
    said: Any = {"messages": [{"role": "user", "content": "Hi", "name": name}], "max_tokens": 1}
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        (CHAT, {**said, "store": True, **fields}),
        (TEXT, {"prompt": "Hi", "max_tokens": 1, "cache_salt": name, "request_id": name}),
        (TEXT, {"prompt": "Hi", "model": name}),
        (CHAT, {**said, "model": f"smollm2:{name}"}),
        (CHAT, {**said, "service_tier": name}),
        (CHAT, {**said, name: name}),
        ("/v1/embeddings", {"input": "Hi", "model": name, "user": name}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 1, "metadata": {name: name}, "conversation": name}),
        ("/v1/messages", {**said, "model": name, "metadata": {"user_id": name}}),
        (f"/v1/{name}", said),
        (f"{CHAT}?{name}={name}", said),
        ("/v1/load_lora_adapter", {"lora_name": name, "lora_path": f"/{name}"}),
        (TEXT, {"prompt": "Hi", "max_tokens": 1, "stop": [name], "priority": number}),
    )
    path, body = kinds[number % len(kinds)]
    return path, headers, body


async def new_labels(target: Target) -> None:
    """Requests, a quarter of them with keys that do not exist, with new values of all that a server might count by."""
    numbers = itertools.count()

    async def user(_: int) -> None:
        while target.open:
            number = next(numbers)
            path, headers, body = labels(number)
            wrong = {"Authorization": f"Bearer sk-{number:x}"} if number % 4 == 0 else {}
            await target.post(path, body, {**headers, **wrong})

    await users(16, user)


def urgent(number: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Return headers and a body of a long answer that claims, in every way, to be more important than others."""
    priority = (-1000, -1, 0, number % 1001, -(number % 1001), 1000)[number % 6]
    headers = {"X-Priority": "0", "Priority": "u=0, i", "X-Request-Timeout": "1", "X-Tenant": f"{number}"}
    asked = {"prompt": f"{number} x", "priority": priority, "n": 2, "max_tokens": 200, "ignore_eos": True}
    more: tuple[dict[str, Any], ...] = ({}, {"timeout": 0.5}, {"service_tier": "priority"}, {"cache_salt": f"{number}"})
    return headers if number % 3 else {}, {**asked, **more[number % len(more)]}


async def urgent_requests(target: Target) -> None:
    """200 clients with answers that claim to be urgent, each with a priority, a timeout or a header of its own."""
    numbers = itertools.count()

    async def user(_: int) -> None:
        while target.open:
            headers, body = urgent(next(numbers))
            await target.post(TEXT, body, headers)

    await users(200, user)


async def scattered(target: Target) -> None:
    """600 waiting requests of 600 priorities, which leave and come again."""

    async def user(number: int) -> None:
        while target.open:
            asked = {"prompt": f"{number} x", "priority": number, "max_tokens": 400, "ignore_eos": True}
            body = json.dumps(asked).encode()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2), target.connection() as (reader, writer):
                    writer.write(target.head(TEXT, len(body)) + body)
                    target.outcomes[(await reader.readline())[9:12].decode() or "closed"] += 1
                    await asyncio.sleep(0.05)
                    continue
            target.outcomes["left"] += 1

    await users(600, user)


CLAIMS: dict[str, Attack] = {
    "one id for 64 requests": one_id,
    "new values of every label": new_labels,
}
"""Attacks by name, as in `attacks.py`."""

RANKED: dict[str, Attack] = {
    "requests that ask to be first": urgent_requests,
    "a priority for each of 600 requests": scattered,
}
"""Attacks by name on a server whose requests have priorities (--scheduling-policy priority)."""
