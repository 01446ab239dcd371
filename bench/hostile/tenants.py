"""Attacks that try to have code run (classes A to C), or to learn of another tenant (L).

What must never happen is an outcome of its own.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from pathlib import Path
from typing import Any

import psutil

from bench.hostile.adapter_files import LOAD, TEXT, with_adapters
from bench.hostile.kinds import users
from bench.hostile.stored import BATCHES, CHAT, FILES, form, line
from bench.hostile.wire import Target, answer_of

CODE_RUN = "code was run"
OTHERS_CACHE = "another tenant's cached tokens"
OPEN_PORT = "an open port that no flag names"
OTHERS_FILES = "another tenant's files or batches"
FORBIDDEN = frozenset({CODE_RUN, OTHERS_CACHE, OPEN_PORT, OTHERS_FILES})

_ROUTES = (TEXT, "/v1/chat/completions", "/v1/embeddings", "/v1/files", "/tokenize", LOAD, "/v1/score")
_TYPES = ("application/x-pickle", "application/octet-stream", "application/json", "application/x-torch")


def _pickle_of(made: Path) -> bytes:
    """Return a pickle, in its oldest format, that makes a folder when it is read."""
    return f"cos\nmkdir\n(S'{made}'\ntR.".encode()


def _adapter_of_code(folder: Path, made: Path) -> Path:
    """Return an adapter whose weights are a pickle, and whose configurations name a Python file."""
    adapter = folder / "adapter"
    adapter.mkdir()
    (adapter / "canary.py").write_text(f"import os\nos.mkdir({str(made)!r})\nclass Canary: pass\n")
    named = {"auto_map": {"AutoConfig": "canary.Canary", "AutoModelForCausalLM": "canary.Canary"}}
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "auto_mapping": {"parent_library": "canary"}, **named}
    for name in ("adapter_config.json", "config.json"):
        (adapter / name).write_text(json.dumps(config))
    for name in ("adapter_model.bin", "adapter_model.safetensors", "pytorch_model.bin"):
        (adapter / name).write_bytes(_pickle_of(made))
    return adapter


async def code(target: Target, folder: Path) -> None:
    """Send pickles to all routes and in fields of tensors, and load adapters of pickles and Python files."""
    made, numbers = folder / "made", itertools.count()
    pickled, adapter = _pickle_of(made), _adapter_of_code(folder, made)
    fields: tuple[dict[str, Any], ...] = (
        {"prompt_embeds": base64.b64encode(pickled).decode(), "max_tokens": 1},
        {"prompt": "x", "logits_processors": ["canary.Canary"]},
        {"prompt": "x", "trust_remote_code": True, "revision": "canary"},
    )

    async def user(_: int) -> None:
        while target.open:
            number = next(numbers)
            headers = {"Content-Type": _TYPES[number % len(_TYPES)]}
            await target.post(_ROUTES[number % len(_ROUTES)], pickled, headers)
            await target.post(TEXT, fields[number % len(fields)])
            await target.post(LOAD, {"lora_name": f"code{number}", "lora_path": str(adapter)})
            if made.exists():
                target.outcomes[CODE_RUN] += 1

    await users(8, user)


async def open_ports(target: Target) -> None:
    """Look for ports of the server's processes besides its own, such as those of messages between processes."""
    while target.open:
        listening = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
        (server,) = {each.pid for each in listening if each.laddr.port == target.port}
        family = {server, *(child.pid for child in psutil.Process(server).children(recursive=True))}
        for each in listening:
            if each.pid in family and each.laddr.port != target.port:
                target.outcomes[OPEN_PORT] += 1
        target.outcomes["looked"] += 1
        await asyncio.sleep(0.2)


async def others_prompts(target: Target) -> None:
    """Send what another key has just sent, to see whether it is in the prefix cache."""

    async def cached(key: str, prompt: str) -> int:
        body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
        headers = {"Authorization": f"Bearer {target.key}{key}"}
        usage = answer_of(await target.ask(target.head(TEXT, len(body), headers=headers) + body)).get("usage") or {}
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    async def user(number: int) -> None:
        for each in itertools.count():
            if not target.open:
                return
            prompt = f"{number} {each} " + "the plan of another tenant " * 30
            await cached("-0", prompt)
            for key, outcome in (("-0", "its own cached tokens"), ("-1", OTHERS_CACHE)):
                if await cached(key, prompt):
                    target.outcomes[outcome] += 1

    await users(4, user)


async def others_files(target: Target) -> None:
    """Read, delete, use and cancel what another key has just stored, by its ids and by paths to it."""

    async def sent(key: str, path: str, method: str, body: bytes = b"", kind: str = "application/json") -> bytes:
        headers = {"Authorization": f"Bearer {target.key}{key}", "Content-Type": kind}
        return await target.ask(target.head(path, len(body), method, headers) + body)

    async def user(number: int) -> None:
        while target.open:
            uploaded = await sent("-0", FILES, "POST", form(line(number)), "multipart/form-data; boundary=b")
            file = f"{FILES}/{answer_of(uploaded).get('id')}"
            asked = {"input_file_id": file.rpartition("/")[2], "endpoint": CHAT, "completion_window": "24h"}
            body = json.dumps(asked).encode()
            batch = f"{BATCHES}/{answer_of(await sent('-0', BATCHES, 'POST', body)).get('id')}"
            theirs = [
                (file, "GET"),
                (f"{file}/content", "GET"),
                (file, "DELETE"),
                (batch, "GET"),
                (f"{batch}/cancel", "POST"),
            ]
            theirs += [(file.replace("file-", "..%2f..%2fkey-rude0%2ffiles%2ffile-") + "/content", "GET")]
            answers = [await sent("-1", path, method) for path, method in theirs]
            answers.append(await sent("-1", BATCHES, "POST", body))
            if any(each.startswith(b"HTTP/1.1 2") for each in answers):
                target.outcomes[OTHERS_FILES] += 1
            await sent("-0", f"{batch}/cancel", "POST")
            await sent("-0", file, "DELETE")

    await users(4, user)


TENANTS = {
    "pickles, and files that name code (A, B, C)": with_adapters(code),
    "ports besides the server's own (A)": open_ports,
    "prompts of another tenant (L)": others_prompts,
    "files and batches of another tenant": others_files,
}
