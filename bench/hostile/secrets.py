"""Requests that write their key, and text of their prompt, where a log, a metric or a trace might keep it."""

from __future__ import annotations

import itertools
import json
from typing import Any

from bench.hostile.kinds import users
from bench.hostile.wire import Target

PROMPT = "the prompt of a rude tenant"
"""Text that no log may hold."""
PLAIN_KEY = "opensesame_WmHoTqzq"
"""The key of another client, which does not begin as keys often do."""


def _headers(key: str) -> tuple[dict[str, str], ...]:
    bearer = {"Authorization": f"Bearer {key}"}
    return (
        {"X-Request-Id": key}, {"X-Request-Id": f"a/{key}/b"}, {"User-Agent": key}, {"Referer": f"http://x/?key={key}"},
        {"Cookie": f"api_key={key}"}, {"Forwarded": f"for={key}"}, {"X-Api-Key": key, "Authorization": f"Basic {key}"},
        {"Authorization": f"Bearer {key}, Bearer x"}, {**bearer, "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        {**bearer, "tracestate": f"a={key}"}, {**bearer, "Content-Type": f"application/json; charset={key}"},
    )  # fmt: skip


def _paths(key: str) -> tuple[str, ...]:
    escaped = "".join(f"%{ord(letter):02x}" for letter in key)
    return (
        "/v1/completions", f"/v1/completions?api_key={key}", f"/v1/models/{key}", f"/v1/{key}/completions",
        f"/v1/files/{key}", f"/v1/models/{escaped}", f"/Bearer%20{key}", f"/v1/batches/{key}/cancel", f"//{key}@x/",
        f"/v1/models/{'%2f' * 30}{key}", f"http://user:{key}@x/v1/models", "/" + "x" * 190 + key, f"/x{key}",
    )  # fmt: skip


async def keys_everywhere(target: Target) -> None:
    """The key, and another client's, in each header, path and method, in the model's name, and as a field's name."""
    keys, numbers = (target.key, PLAIN_KEY), itertools.count()
    headers, paths = ([each for key in keys for each in found(key)] for found in (_headers, _paths))
    asked: tuple[dict[str, Any], ...] = ({}, *({"model": key} for key in keys), {PLAIN_KEY: 1})
    bodies = [json.dumps({"prompt": PROMPT, "max_tokens": 1, **each}).encode() for each in asked]

    async def user(_: int) -> None:
        while target.open:
            number = next(numbers)
            body = bodies[number % len(bodies)]
            method = keys[number % 2] if number % 17 == 0 else "POST"
            head = target.head(paths[number % len(paths)], len(body), method, headers[number % len(headers)])
            await target.raw(head + body)

    await users(8, user)
