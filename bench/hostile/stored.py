"""Attacks on files, batches and adapters, which a server stores on disks or reads from them for clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from pathlib import Path
from typing import Any

from bench.hostile.kinds import Attack, held, users
from bench.hostile.wire import Target, answer_of

FILES, BATCHES, LOAD = "/v1/files", "/v1/batches", "/v1/load_lora_adapter"
CHAT = "/v1/chat/completions"
_FORM = {"Content-Type": "multipart/form-data; boundary=b"}
_PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
_FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n'


def form(content: bytes, name: bytes = b"in.jsonl") -> bytes:
    """Return a form with a file to upload."""
    return _PURPOSE + _FILE % name + content + b"\r\n--b--\r\n"


def part(number: int) -> bytes:
    """Return a small part of a form."""
    return b'--b\r\nContent-Disposition: form-data; name="p%d"\r\n\r\nx\r\n' % number


def line(number: int, **body: Any) -> bytes:
    """Return a line of a batch."""
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
    b"\r\n" * (4 << 20),
    b"preamble" * 500_000,
    _PURPOSE + b'--b\r\nContent-Disposition: form-data; name="' + b'\\"' * 20_000 + b'"\r\n\r\nx\r\n--b--\r\n',
    form(b"\r\n--b" * 3 + b"\r\n-" * 1_000_000),
)


async def uploads(target: Target) -> None:
    """Upload forms that are large, have very many parts, or are not valid, and delete the files."""

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
    """Create batches whose lines ask for too much or are not JSON, and cancel them a moment later."""

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


async def stored_file(target: Target, content: bytes, name: bytes = b"in.jsonl") -> str:
    """Upload a file; returns its path."""
    body = form(content, name)
    answer = await target.ask(target.head(FILES, len(body), headers=_FORM) + body)
    return f"{FILES}/{answer_of(answer).get('id')}"


_RANGES = (
    ",".join(f"{each}-{each}" for each in range(0, 6000, 2)), ",".join("0-" for _ in range(9000)), "0-1," * 8000,
    ",".join(f"{9000 - each}-" for each in range(0, 4000, 2)), "0-0,-1", "-9999999999999999", "9" * 20_000 + "-",
)  # fmt: skip


async def ranges(target: Target) -> None:
    """Very many, overlapping and impossible parts of a stored file."""
    path = await stored_file(target, b"x" * (4 << 20))

    async def user(number: int) -> None:
        while target.open:
            header = {"Range": f"bytes={_RANGES[number % len(_RANGES)]}"}
            await target.raw(target.head(f"{path}/content", 0, "GET", header))
            number += 8

    await users(8, user)


async def unread_files(target: Target) -> None:
    """A stored file that 60 clients ask for, and read 64 bytes of twice a second."""
    path = await stored_file(target, b"x" * (50 << 20))

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError):
                async with target.connection() as (reader, writer):
                    writer.transport.get_extra_info("socket").setsockopt(1, 8, 4096)  # SO_RCVBUF
                    writer.write(target.head(f"{path}/content", 0, "GET"))
                    while target.open and await reader.read(64):
                        await asyncio.sleep(0.5)
                target.outcomes["dropped" if target.open else "held to the end"] += 1

    await users(60, user)


async def cancelled(target: Target) -> None:
    """Batches that are created, listed and cancelled as fast as can be."""
    body = form(line(1))
    file_id = answer_of(await target.ask(target.head(FILES, len(body), headers=_FORM) + body)).get("id")
    asked = json.dumps({"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}).encode()

    async def user(_: int) -> None:
        while target.open:
            batch = answer_of(await target.ask(target.head(BATCHES, len(asked)) + asked)).get("id")
            await target.raw(target.head(f"{BATCHES}/{batch}/cancel", 0))
            await target.raw(target.head(f"{BATCHES}?limit=100", 0, "GET"))

    await users(16, user)


async def one_kilobyte_chunks(target: Target) -> None:
    """A file of 4 MB in chunks of 1 KiB, each of which is written to the disk."""
    body = form(b"x" * (4 << 20))
    chunks = (body[at : at + 1024] for at in range(0, len(body), 1024))
    head = target.head(FILES, 0, headers=_FORM).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    data = head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"

    async def user(_: int) -> None:
        while target.open:
            if file_id := answer_of(await target.ask(data)).get("id"):
                await target.raw(target.head(f"{FILES}/{file_id}", 0, "DELETE"))

    await users(8, user)


async def small_files(target: Target) -> None:
    """Very many small files, and lists of them; they are removed in the end."""
    body, made = form(b"{}\n"), []

    async def user(number: int) -> None:
        while target.open:
            if number % 3:
                await target.raw(target.head(f"{FILES}?limit=10000&order=asc", 0, "GET"))
            elif file_id := answer_of(await target.ask(target.head(FILES, len(body), headers=_FORM) + body)).get("id"):
                made.append(file_id)

    await users(12, user)
    await asyncio.gather(*(target.raw(target.head(f"{FILES}/{each}", 0, "DELETE")) for each in made[:200]))


STORED: dict[str, Attack] = {
    "ranges of a stored file": ranges,
    "stored files that are not read": unread_files,
    "batches created and cancelled": cancelled,
    "uploads in chunks of 1 KiB": one_kilobyte_chunks,
    "small files, listed": small_files,
    "uploads that drip": held(
        lambda target: target.head(FILES, 100 << 20, headers=_FORM) + _PURPOSE + _FILE % b"a" + b"x" * 1000, 300, 0.2
    ),
}


_PATHS = (
    "../" * 500 + "etc", "/proc/self/root/proc/self/fd", "/dev/zero", "\0", "x" * 4096, "s3://127.0.0.1/x", "s3://",
    "http://127.0.0.1:1/x", "nobody/nothing", "~root", "/etc/" + "a/" * 2000, "\\\\host\\share", "/sys/class",
)  # fmt: skip


async def adapters(target: Target) -> None:
    """Ask to load adapters from addresses that do not exist or are not allowed, under names of all kinds."""

    async def user(number: int) -> None:
        chance = random.Random(number)
        while target.open:
            name = f"{chance.getrandbits(60):x}" * chance.choice((1, 16))
            asked = {"lora_name": name, "lora_path": chance.choice((*_PATHS, str(Path.cwd())))}
            await target.post(chance.choice((LOAD, "/v1/unload_lora_adapter")), asked)

    await users(8, user)
