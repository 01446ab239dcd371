"""Attacks on what a server keeps or reads from disks for clients: files, batches and adapters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from bench.hostile.kinds import users
from bench.hostile.wire import Target, answer_of

FILES, BATCHES, LOAD = "/v1/files", "/v1/batches", "/v1/load_lora_adapter"
CHAT = "/v1/chat/completions"
_FORM = {"Content-Type": "multipart/form-data; boundary=b"}
_PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
_FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'


def form(content: bytes, name: bytes = b"in.jsonl") -> bytes:
    """A form with a file to upload."""
    return _PURPOSE + _FILE % name + content + b"\r\n--b--\r\n"


def part(number: int) -> bytes:
    """A small part of a form."""
    return b'--b\r\nContent-Disposition: form-data; name="p%d"\r\n\r\nx\r\n' % number


def line(number: int, **body: Any) -> bytes:
    """A line of a batch."""
    asked = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **body}
    return json.dumps({"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": asked}).encode() + b"\n"


_FORMS = (
    b"".join(map(part, range(300_000))) + form(b"x"),
    form(b"x" * (8 << 20)),
    form(b"\r\n--" * (2 << 20)),
    form(b"x", b"../../../../etc/cron.d/" + b"x" * 3000),
    form(b"x", b"a" * 100_000),
    _PURPOSE * 100_000,
    b"--b\r\n" + b"X: y\r\n" * 100_000,
    _PURPOSE + _FILE % b"a" + b"x" * 1000,  # without its end
)


async def uploads(target: Target) -> None:
    """Forms that are large, made of very many parts, or none at all; nothing is left of them in the end."""

    async def user(number: int) -> None:
        while target.open:
            body = _FORMS[number % len(_FORMS)]
            answer = await target.ask(target.head(FILES, len(body), headers=_FORM) + body)
            if file_id := answer_of(answer).get("id"):
                await target.raw(target.head(f"{FILES}/{file_id}", 0, "DELETE"))
            number += 4

    await users(4, user)


_LINES: tuple[bytes, ...] = (
    b"".join(line(number) for number in range(50_000)),
    b"".join(line(number, max_tokens=10**9, n=8) for number in range(20_000)),
    b"".join(line(number, guided_regex="(a+)+b{1000}") for number in range(2000)),
    b"\n" * (4 << 20),
    b'{"custom_id": "' + b"x" * (4 << 20),
    (b"[" * 100_000 + b"\n") * 40,
    b"".join(line(number, messages=[{"role": "user", "content": "lorem ipsum " * 4000}]) for number in range(100)),
)


async def batches(target: Target) -> None:
    """Batches of lines that ask for too much or are no JSON, cancelled a moment later."""

    async def user(number: int) -> None:
        while target.open:
            body = form(_LINES[number % len(_LINES)])
            answer = await target.ask(target.head(FILES, len(body), headers=_FORM) + body)
            file_id = answer_of(answer).get("id")
            asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
            data = json.dumps(asked).encode()
            batch = answer_of(await target.ask(target.head(BATCHES, len(data)) + data)).get("id")
            for _ in range(20):
                await target.raw(target.head(f"{BATCHES}/{batch}", 0, "GET"))
                await target.raw(target.head(f"{BATCHES}/{batch}/cancel", 0))
            await target.raw(target.head(f"{FILES}/{file_id}", 0, "DELETE"))
            number += 4

    await users(4, user)


_PATHS = (
    "../" * 500 + "etc", "/proc/self/root/proc/self/fd", "/dev/zero", "\0", "x" * 4096, "s3://127.0.0.1/x", "s3://",
    "http://127.0.0.1:1/x", "nobody/nothing", "~root", "/etc/" + "a/" * 2000, "\\\\host\\share", "/sys/class",
)  # fmt: skip


async def adapters(target: Target) -> None:
    """Adapters that are elsewhere, or nowhere, by names of all kinds."""

    async def user(number: int) -> None:
        chance = random.Random(number)
        while target.open:
            name = f"{chance.getrandbits(60):x}" * chance.choice((1, 16))
            asked = {"lora_name": name, "lora_path": chance.choice((*_PATHS, str(Path.cwd())))}
            await target.post(chance.choice((LOAD, "/v1/unload_lora_adapter")), asked)

    await users(8, user)
