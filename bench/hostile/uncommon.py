"""Attacks through fields, headers and files that few clients use."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from bench.hostile.adapter_files import LOAD, UNLOAD, adapter, with_adapters
from bench.hostile.kinds import Attack, in_turn, posts, users
from bench.hostile.stored import BATCHES, line, stored_file
from bench.hostile.wire import Target, answer_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_FORCED = (
    r'<tool_call>\{"name": "f", "arguments": (\{"a":){3000}',
    r"(<tool_call>\{){900}",
    r"<tool_call>\[{3000}",
    r'<tool_call>\{"name": "f", "arguments": "(\\\\u[dD]83[dD]){900}',
    r"<think>(</think><think>){900}",
    r'<tool_call>\{"name": "f", "arguments": \{"a": "(\\\\\\\\){2000}',
    r"(</tool_call>){900}",
    r"[ \n]{3000}<tool_call>",
    r"(data: \[DONE\]\n\n){900}",
    r"[\u2028\u0085\ufeff]{2000}",
)


def forced(number: int) -> dict[str, Any]:
    """Return a chat whose answer is forced to be what a parser of tool calls takes longest for."""
    tools = {"tools": _TOOLS} if number % 2 else {}
    said = [{"role": "user", "content": f"{number}"}]
    pattern = _FORCED[number % len(_FORCED)]
    return {"messages": said, "max_tokens": 3000, "guided_regex": pattern, "stream": number % 3 == 0, **tools}


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


def labelled(number: int) -> dict[str, Any]:
    """Return a body with new values of all fields that a server might count by."""
    name = f"{number}\u202e\U0001f469"
    metadata = {f"{name}{each}": name for each in range(16)}
    return {
        "messages": [{"role": "user", "content": "Hi", "name": name}],
        "max_tokens": 1,
        "user": name * 20,
        "safety_identifier": name,
        "prompt_cache_key": name,
        "metadata": metadata,
        "cache_salt": str(number),
        "service_tier": name,
        "request_id": name,
        "store": True,
    }


_CODECS = (
    "punycode",
    "idna",
    "zlib",
    "bz2",
    "rot13",
    "unicode_escape",
    "raw_unicode_escape",
    "utf-7",
    "undefined",
    "hex",
    "base64",
    "mbcs",
    "utf-16",
    "utf-32",
    "..",
    "\xff",
    "x" * 5000,
    "utf-8; charset=punycode",
)


async def codecs(target: Target) -> None:
    """Bodies whose media type names an encoding that takes long, or that is none."""
    body = json.dumps({"prompt": "a-" * 40_000 + "0" * 100_000}).encode()
    kinds = [
        target.head("/tokenize", len(body), headers={"Content-Type": f"{media}; charset={codec}"}) + body
        for codec in _CODECS
        for media in ("application/json", "text/plain", "application/x-www-form-urlencoded")
    ]
    await in_turn(target, kinds, 8)


async def compressed(target: Target) -> None:
    """Bodies of 100 KB that unpack to 100 MB, declared in each way."""
    bomb = gzip.compress(b"x" * (100 << 20), 9)
    ways = (
        {"Content-Encoding": "gzip"},
        {"Content-Encoding": "identity, GZIP"},
        {"Content-Encoding": "x-gzip\t"},
        {"Content-Encoding": "br"},
        {"Content-Type": "application/gzip"},
        {"Transfer-Encoding": "gzip"},
        {"Content-Encoding": "aes128gcm"},
        {"TE": "gzip"},
        {"Content-Transfer-Encoding": "base64"},
    )
    await in_turn(target, [target.head("/tokenize", len(bomb), headers=way) + bomb for way in ways], 8)


async def filters(target: Target) -> None:
    """Scrapes with thousands of filters, and lists of media types that are compared with each other."""
    names = "&".join(f"name[]=octavo_{each}" for each in range(2400))
    heads = [
        target.head(f"/metrics?{names}", 0, "GET"),
        target.head("/metrics", 0, "GET", {"Accept": "application/openmetrics-text;version=0.0.1;q=0.5," * 900}),
        target.head("/metrics", 0, "GET", {"Accept-Encoding": "gzip;q=1.0, " * 3000}),
        target.head("/metrics?" + "name%5B%5D=x&" * 4000, 0, "GET"),
    ]
    await in_turn(target, heads, 24)


async def conditions(target: Target) -> None:
    """Conditions, ranges and preflights as long as allowed, for pages that need no key."""
    headers: tuple[dict[str, str], ...] = (
        {"If-None-Match": '"x", W/' * 7000},
        {"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(0, 9000, 2))},
        {"If-Modified-Since": "Thu, " * 9000},
        {"If-Range": '"' * 50_000, "Range": "bytes=0-"},
        {"Accept-Language": "en;q=0.1," * 5000},
        {"Origin": "https://" + "a." * 20_000},
        {"Origin": "null", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a," * 20_000},
        {"Forwarded": "for=_x;" * 7000},
        {"X-Forwarded-Prefix": "/.." * 9000, "X-Forwarded-Host": "evil"},
        {"Cookie": "a=" + '"\\' * 20_000},
        {"Host": "[::1" + "%25" * 9000},
        {"Referer": "//" * 20_000},
    )
    paths = ("/", "/openapi.json", "/docs", "/v1/models", "/playground/", "/version")
    kinds = [
        target.head(path, 0, method, header)
        for header in headers
        for path in paths
        for method in ("GET", "OPTIONS", "HEAD")
    ]
    random.Random(1).shuffle(kinds)
    await in_turn(target, kinds, 16)


async def guesses(target: Target) -> None:
    """Keys guessed in each form of authentication."""
    chance = random.Random(2)
    body = json.dumps({"prompt": "x"}).encode()
    forms = (
        "Bearer sk-{}",
        "Basic {}",
        "Digest username={}",
        "Bearer\t{}",
        "bearer {}\xe9",
        "Bearer " + "{}" * 6000,
        "{}",
    )

    async def user(number: int) -> None:
        while target.open:
            number += 1
            given = forms[number % len(forms)].replace("{}", f"{chance.getrandbits(64):x}"[:8])
            await target.raw(target.head(TEXT, len(body), headers={"Authorization": given}) + body)

    await users(64, user)


_ALL = list(range(49_152))
_IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"allowed_token_ids": []},
    {"allowed_token_ids": [0], "bad_words": ["<|endoftext|>"]},
    {"min_tokens": 40, "guided_regex": "a"},
    {"min_tokens": 40, "stop_token_ids": _ALL[:4096], "max_tokens": 40},
    {"logit_bias": {str(each): -100 for each in range(300)}, "allowed_token_ids": _ALL[:300]},
    {"guided_choice": ["a"], "allowed_token_ids": [0]},
    {"guided_choice": ["a"], "bad_words": ["a"]},
    {"guided_regex": "[a-c]+", "logit_bias": {"66": -100, "67": -100, "68": -100}, "temperature": 2},
    {"temperature": 1e-300},
    {"temperature": 2, "top_p": 1e-300},
    {"temperature": 2, "min_p": 1.0, "top_k": 1},
    {"repetition_penalty": 1e38},
    {"repetition_penalty": 1e-38},
    {"presence_penalty": -2, "frequency_penalty": -2},
    {"logit_bias": {"5": float("inf")}},
    {"logit_bias": {" 5": 1}},
    {"logit_bias": {"\u0665": 1}},
    {"logit_bias": {"5": 1, "05": 2, "+5": 3}},
    {"logit_bias": {"-5": 1}},
    {"logit_bias": {"1e3": 1}},
    {"stop": [""]},
    {"stop": ["\ud800"]},
    {"bad_words": ["", " "]},
    {"max_tokens": 0},
    {"max_tokens": 0, "echo": True},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [[1], "x"]},
    {"prompt": ["x", [1]]},
    {"prompt_embeds": "gASVAAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg=="},
    {"logits_processors": ["os.system"]},
    {"kv_transfer_params": {"do_remote_prefill": True}},
    {"best_of": 10**6},
    {"use_beam_search": True, "n": 64},
    {"suffix": "x" * 1_000_000},
    {"timeout": 1e308},
    {"timeout": -0.0},
    {"priority": -(2**63)},
    {"seed": -(2**63)},
    {"truncate_prompt_tokens": -1, "prompt": "x " * 9000},
    {"n": 64, "echo": True, "prompt_logprobs": 20},
    {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "n": 32},
    {"thinking_token_budget": -5},
    {"lora_request": {"lora_path": "/etc"}},
    {"model": None},
    {"n": True},
)


def impossible(number: int) -> dict[str, Any]:
    """Return a request whose fields leave no token, contradict each other, or ask for what a server must not do."""
    return {"prompt": f"{number}", "max_tokens": 8, "temperature": 1, **_IMPOSSIBLE[number % len(_IMPOSSIBLE)]}


def first_always(number: int) -> dict[str, Any]:
    """Return a long answer that asks to be first."""
    return {"prompt": f"{number} x", "priority": -1_000_000, "n": 4, "max_tokens": 1500, "ignore_eos": True}


def media(number: int) -> dict[str, Any]:
    """Return a chat with parts of 6 MB that are no text, or claim to be."""
    data = "QUFB" * 1_500_000
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
        {"type": "file", "file": {"file_data": data}},
        {"type": "image_url", "image_url": {"url": f"data:image/svg+xml;base64,{data}"}},
        {"type": "video_url", "video_url": {"url": "file:///dev/zero"}},
        {"type": "text", "text": f"data:text/plain;base64,{data}"},
        {"type": "image_url", "image_url": {"url": "gopher://169.254.169.254/" + data[:9000]}},
    )
    return {"messages": [{"role": "user", "content": [kinds[number % len(kinds)]]}], "max_tokens": 1}


def pooled(number: int) -> dict[str, Any]:
    """Return a request for embeddings with odd settings and inputs."""
    odd: tuple[dict[str, Any], ...] = (
        {"dimensions": 10**9},
        {"dimensions": 1, "encoding_format": "base64"},
        {"encoding_format": "x" * 100_000},
        {"input": [[]]},
        {"input": [""] * 2048},
        {"input": [[10**9]]},
        {"input": {"a": 1}},
        {"input": ["x", 1]},
        {"input": [[[1]]]},
        {"input": "x" * 4_000_000, "truncate_prompt_tokens": 1},
        {"normalize": "x"},
    )
    return {"input": ["x"], **odd[number % len(odd)]}


async def secret_trailers(target: Target) -> None:
    """Requests without a key whose trailers have one, another length, or another path."""
    head = target.head("/tokenize", 0, headers={"Authorization": "x"}).replace(
        b"Content-Length: 0", b"Transfer-Encoding: chunked\r\nTrailer: Authorization, Content-Length, Host"
    )
    body = b'd\r\n{"prompt": ""\r\n1\r\n}\r\n0\r\n'
    trailers = (
        f"Authorization: Bearer {target.key}\r\n",
        "Content-Length: 99\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Host: y\r\nX-Api-Key: " + target.key + "\r\n",
        ": x\r\n",
        "\x00: x\r\n",
    )
    await in_turn(target, [head + body + each.encode() + b"\r\n" for each in trailers], 8)


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


def _tensors(number: float, dtype: str = "F32", layers: int = 30) -> bytes:
    """Return a safetensors file of an adapter of rank 8 whose numbers are all the same bytes."""
    module = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"
    header, data = {}, b""
    for layer in range(layers):
        for part, shape in (("A", [8, 576]), ("B", [576, 8])):
            content = np.full(shape, number, np.float32).tobytes()
            header[module.format(layer, part)] = {
                "dtype": dtype,
                "shape": shape,
                "data_offsets": [len(data), len(data) + len(content)],
            }
            data += content
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


async def wrong_numbers(target: Target, folder: Path) -> None:
    """Adapters of infinite and undefined numbers and of odd settings, used at once."""
    good = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"lora_alpha": 1e38},
        {"lora_alpha": -8},
        {"use_rslora": "yes"},
        {"r": 8.5},
        {"r": True},
        {"r": -8},
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"peft_type": "PREFIX_TUNING"},
        {"alpha_pattern": {"(a+)+$": 1e308}},
        {"rank_pattern": {".*": 0}},
        {"target_modules": ".*(a|a)*b"},
        {"base_model_name_or_path": "/etc/" + "x" * 10**6},
        {"lora_alpha": float("nan")},
        {"layers_to_transform": [10**9]},
    )
    paths = [
        adapter(folder / f"s{at}", _tensors(0.01), json.dumps({**good, **each}).encode())
        for at, each in enumerate(settings)
    ]
    numbers = (float("nan"), float("inf"), 1e38, -1e38, 1e-45)
    paths += [adapter(folder / f"n{at}", _tensors(each), json.dumps(good).encode()) for at, each in enumerate(numbers)]
    paths += [
        adapter(folder / f"d{at}", _tensors(1, kind), json.dumps(good).encode())
        for at, kind in enumerate(("I32", "U32", "F64", "X", "F8_E4M3"))
    ]
    loop = folder / "loop"
    loop.symlink_to(loop)
    paths.append(loop)

    async def user(number: int) -> None:
        while target.open:
            number += 1
            name = f"w{number % 8}"
            await target.post(
                LOAD, {"lora_name": name, "lora_path": str(paths[number % len(paths)]), "load_inplace": True}
            )
            asked = {"model": name, "prompt": "x", "max_tokens": 4, "logprobs": 3, "temperature": number % 2}
            await target.post(TEXT, asked)

    await users(4, user)
    for number in range(8):
        await target.post(UNLOAD, {"lora_name": f"w{number}"})


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


UNCOMMON: dict[str, Attack] = {
    "answers forced into odd calls of tools": posts(CHAT, forced, 8),
    "one id for 64 requests": one_id,
    "new values of every label": posts(CHAT, labelled, 16),
    "bodies in odd encodings": codecs,
    "compressed bodies": compressed,
    "filters of scrapes": filters,
    "conditions, ranges and preflights": conditions,
    "keys guessed in every form (E)": guesses,
    "fields that leave no token, or contradict each other": posts(TEXT, impossible, 16),
    "requests that ask to be first": posts(TEXT, first_always, 32),
    "files, sounds and videos in chats (D, J)": posts(CHAT, media, 4),
    "odd inputs to /v1/embeddings": posts("/v1/embeddings", pooled, 8),
    "keys in trailers (E, M)": secret_trailers,
    "batches of odd lines": odd_lines,
    "adapters of infinite numbers": with_adapters(wrong_numbers),
    "streams cut after N bytes": cut_streams,
}
"""Attacks by name, as in `attacks.py`."""
