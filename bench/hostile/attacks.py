"""The attacks, by name. Each repeats one kind of abuse until its time is over. Letters name a class of attacks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from bench.hostile import (
    adapter_files,
    bodies,
    claims,
    connections,
    corners,
    floods,
    odd_batches,
    odd_fields,
    odd_headers,
    patterns,
    probes,
    secrets,
    several_keys,
    shapes,
    sockets,
    stored,
    tenants,
    together,
    unread_bytes,
)
from bench.hostile.kinds import Attack, held, posts, unread, users
from bench.hostile.wire import Target

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "lorem ipsum dolor sit amet consectetur "


def chat(content: Any = "Hi", **more: Any) -> dict[str, Any]:
    """Return a chat request."""
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 4, **more}


async def leave_early(target: Target) -> None:
    """Send chats, and close the connection at once or in the middle of the answer."""

    async def user(number: int) -> None:
        chance = random.Random(number)
        body = json.dumps(chat(WORDS * 300, max_tokens=200, stream=True)).encode()
        while target.open:
            with contextlib.suppress(OSError):
                async with target.connection() as (_, writer):
                    writer.write(target.head(CHAT, len(body)) + body)
                    await writer.drain()
                    await asyncio.sleep(chance.choice((0.0, 0.05, 0.5)))
                target.outcomes["left"] += 1

    await users(8, user)


def malformed(target: Target) -> Callable[[int], bytes]:
    """Return requests with wrong HTTP/1.1 syntax, one kind after another."""
    head = target.head("/tokenize", 2)
    chunked = head.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked")
    kinds = (
        head.replace(b"Content-Length: 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked") + b"{}",
        head.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3") + b"{}",
        head.replace(b"Host: x", b"Host: x\r\n folded") + b"{}",
        head.replace(b"\r\n", b"\n") + b"{}",
        chunked + b"fffffffffffffffff\r\n{}",
        chunked + b"-2\r\n{}\r\n0\r\n\r\n",
        chunked + b"\r\n{}\r\n0\r\n\r\n",
        head.replace(b"/tokenize", b"http:///tokenize") + b"{}",
        head.replace(b"Host: x", b"X-Big: " + b"x" * 60_000) + b"{}",
        head.replace(b"Host: x", b"\r\n".join(b"X-%d: y" % number for number in range(300))) + b"{}",
        b"\x16\x03\x01\x02\x00\x01\x00" + b"\x00" * 500,
    )
    return lambda number: kinds[number % len(kinds)]


async def not_http(target: Target) -> None:
    """Send all requests of `malformed` in turn."""
    kinds, numbers = malformed(target), itertools.count()

    async def user(_: int) -> None:
        while target.open:
            await target.raw(kinds(next(numbers)))

    await users(8, user)


async def methods_and_paths(target: Target) -> None:
    """Send random methods and paths, which must not become series of metrics, nor open a route without a key."""
    chance = random.Random(4)

    async def user(_: int) -> None:
        while target.open:
            name = f"{chance.getrandbits(40):x}"
            path = chance.choice(
                (f"/v1/{name}", f"//v1/models?x={name}", "/v1/%2e%2e/metrics", f"/{name}/../v1/models")
            )
            await target.raw(target.head(path, 0, name.upper(), {"Authorization": "Bearer sk-wrong"}))

    await users(8, user)


def nested(depth: int) -> bytes:
    """Return JSON with arrays nested `depth` deep."""
    return b'{"prompt": ' + b"[" * depth + b"]" * depth + b"}"


def schema(number: int) -> dict[str, Any]:
    """Return a chat with a new JSON schema each time, with many properties."""
    properties = {f"p{number}_{each}": {"type": "string", "pattern": "(a+)+b"} for each in range(60)}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": properties}}}
    return chat(response_format=form)


def deep_schema(depth: int) -> dict[str, Any]:
    """Return a schema nested `depth` deep."""
    found: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        found = {"type": "object", "properties": {"a": found}, "required": ["a"]}
    return found


def image(address: str) -> list[dict[str, Any]]:
    """Return the content of a chat message that is an image."""
    return [{"type": "image_url", "image_url": {"url": address}}]


async def other_apis(target: Target) -> None:
    """Send inputs of some thousand tokens in the shapes of other APIs."""

    async def user(number: int) -> None:
        while target.open:
            number += 4
            text = f"{number} {WORDS * 250}"
            await target.post("/v1/responses", {"input": text, "max_output_tokens": 16})
            message = {"role": "user", "content": [{"type": "text", "text": text}]}
            body = {"model": "smollm2", "max_tokens": 4, "messages": [message]}
            await target.post("/v1/messages", body)
            await target.post("/v1/messages/count_tokens", {"model": "smollm2", "messages": [message] * 2000})

    await users(4, user)


def ranked(number: int) -> dict[str, Any]:
    """Return a request to rank as many documents as are allowed."""
    return {"query": f"{number}", "documents": [f"{number} {each} {WORDS}" for each in range(2048)]}


def scored(number: int) -> dict[str, Any]:
    """Return a request for log probabilities of a prompt, whose length varies: its last chunk may have one token."""
    return {"prompt": [number % 40_000, *[100] * (1 + number % 130)], "prompt_logprobs": 20, "max_tokens": 1}


def rules(number: int) -> str:
    """Return a new grammar each time, with 1,500 rules."""
    named = "\n".join(f'r{each}: "{number}{each}" r{each + 1} | "a" r{each + 1}' for each in range(1500))
    return f'start: r0\n{named}\nr1500: "b"'


def tool(number: int, index: int) -> dict[str, Any]:
    """Return a function that an answer may call."""
    fields = {f"p{number}": {"type": "string", "pattern": "(a|b)*c{9}"}, "x": {"enum": list(range(40))}}
    return {
        "type": "function",
        "function": {"name": f"t{index}", "parameters": {"type": "object", "properties": fields}},
    }


_CALL = {"tool_choice": "required"}
_FILLING = {"n": 8, "max_tokens": 3000, "ignore_eos": True}
_PRIMES = {"type": "integer", "allOf": [{"multipleOf": prime} for prime in (999_983, 999_979, 999_961, 999_959)]}
_BOMBS: tuple[dict[str, Any], ...] = (
    {"$ref": "#"}, _PRIMES, {"type": "string", "pattern": "a{1000000000}"},
    {"type": "object", "patternProperties": {f"^{'(a|b)*' * 20}{each}$": {"type": "string"} for each in range(100)}},
)  # fmt: skip
_REPEATED = {"stop": ["a " * 127 + each for each in "bcde"], "max_tokens": 200, "ignore_eos": True}
_STEERED = {"bad_words": [f"word{each}" for each in range(64)], "logit_bias": {str(each): 1 for each in range(300)}}
_TEMPLATE, _BRACES = "{{ ''.__class__ }}", {"tools": "{" + ":" * 16_000}
_SCORED = {"echo": True, "logprobs": 20, "max_tokens": 1}
_LONG_STREAM = {"prompt": "x", "n": 8, "logprobs": 20, "max_tokens": 1000, "stream": True, "ignore_eos": True}
_REGEXES = ("(a+)+b", ".*a.{40}", ".{1,5000}x{1,5000}", "(((a{1,100}){1,100}){1,100}){1,100}", "[" * 5000)
_OUT_OF_BOUNDS: tuple[dict[str, Any], ...] = (
    {"n": 10**9}, {"n": 0}, {"max_tokens": 10**12}, {"max_tokens": True}, {"temperature": float("inf")},
    {"temperature": float("nan")}, {"top_logprobs": 10**9, "logprobs": True}, {"top_k": -(10**9)},
    {"logit_bias": {str(token): 100 for token in range(40_000)}}, {"logit_bias": {"49152": 1}},
    {"stop": ["x" * 10_000] * 1000}, {"stop_token_ids": list(range(100_000))}, {"min_tokens": 10**9}, {"seed": 10**40},
    {"cache_salt": "x" * 100_000}, {"chat_template_kwargs": {"tokenize": True, "chat_template": "{{ 1 }}"}},
    {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}, {"tools": [{"type": "function"}] * 50_000},
    {"timeout": -1}, {"priority": 10**30}, {"repetition_penalty": 0}, {"presence_penalty": 1e300},
)  # fmt: skip

ATTACKS: dict[str, Attack] = {
    "0.5 MB to /tokenize, 60 at once": posts("/tokenize", lambda _: {"prompt": WORDS * 13_000}, 60),
    "0.5 MB to /detokenize": posts("/detokenize", lambda _: {"tokens": [100] * 90_000}, 24),
    "16,384 messages in a chat": posts(CHAT, lambda _: {"messages": [{"role": "user", "content": "x"}] * 16_384}),
    "8 MB chats that are too long": posts(CHAT, lambda _: chat(WORDS * 200_000)),
    "JSON nested 100,000 deep": posts(TEXT, lambda _: nested(100_000)),
    "a million JSON keys": posts(CHAT, lambda n: {**chat(), **{f"{n}-{k}": k for k in range(200_000)}}, 4),
    "no JSON, wrong fields": posts(CHAT, lambda n: b"{" * 1000 if n % 2 else {"messages": n, "model": [n]}),
    "fields out of bounds (I)": posts(CHAT, lambda n: chat(**_OUT_OF_BOUNDS[n % len(_OUT_OF_BOUNDS)])),
    "templates and their arguments (F)": posts(CHAT, lambda _: chat(_TEMPLATE * 20_000, chat_template_kwargs=_BRACES)),
    "regular expressions (G)": posts(CHAT, lambda n: chat(guided_regex=_REGEXES[n % len(_REGEXES)])),
    "a new JSON schema each time (H)": posts(CHAT, schema),
    "JSON schemas nested 300 deep (H)": posts(CHAT, lambda _: chat(guided_json=deep_schema(300))),
    "enum of 20,000 (H)": posts(CHAT, lambda n: chat(guided_choice=[f"{n} {each}" for each in range(20_000)]), 4),
    "prompts × n × logprobs": posts(TEXT, lambda _: {"prompt": ["x"] * 6, "n": 8, "logprobs": 20, "max_tokens": 150}),
    "prompt log probabilities of long prompts": posts(TEXT, lambda n: {"prompt": f"{n} " + WORDS * 60, **_SCORED}),
    "prompts of every length, scored": posts(TEXT, scored, 12),
    "long prompts without a common prefix": posts(TEXT, lambda n: {"prompt": f"{n} " + WORDS * 140, "max_tokens": 1}),
    "token ids out of range (K)": posts(TEXT, lambda n: {"prompt": [49_152 + n, -1, 10**12], "max_tokens": 4}),
    "addresses in fields (D)": posts(CHAT, lambda _: chat(image("http://127.0.0.1:1/"))),
    "images of 2 MB (J)": posts(CHAT, lambda _: chat(image("data:image/png;base64," + "A" * 2_000_000))),
    "clients that leave early": leave_early,
    "silent connections": held(lambda _: b"", 300),
    "heads byte by byte (M)": held(lambda _: b"GET /version HTTP/1.1\r\nX: ", 100, 0.5),
    "bodies byte by byte": held(lambda target: target.head("/tokenize", 8 << 20) + b'{"prompt": "', 60, 0.5),
    "8 MB bodies that stop at 7 MB": held(lambda target: target.head("/tokenize", 8 << 20) + b"x" * (7 << 20), 40),
    "large answers that are not read": unread("/detokenize", {"tokens": [100] * 900_000}, 24),
    "streams that are not read": unread(TEXT, _LONG_STREAM, 6),
    "streams read 64 bytes a second": unread(TEXT, _LONG_STREAM, 6, 1.0),
    "2,048 texts to /v1/embeddings": posts("/v1/embeddings", lambda n: {"input": [f"{n} {WORDS}"] * 2048}, 4),
    "2,048 documents to /v1/rerank": posts("/v1/rerank", ranked, 4),
    "long inputs to /v1/responses and /v1/messages": other_apis,
    "grammars that fail at their first token (H)": posts(CHAT, lambda n: chat(guided_json=_BOMBS[n % len(_BOMBS)])),
    "new grammars of 1,500 rules (H)": posts(CHAT, lambda n: chat(guided_grammar=rules(n))),
    "30 tools with schemas (H)": posts(CHAT, lambda n: chat(tools=[tool(n, each) for each in range(30)], **_CALL)),
    "256 characters to stop at, repeated": posts(TEXT, lambda n: {**_REPEATED, "prompt": f"{n} " + "a " * 500}),
    "bad words and biases × n": posts(TEXT, lambda n: {"prompt": f"{n}", "n": 8, "max_tokens": 100, **_STEERED}),
    "prompts truncated from 4 MB": posts(TEXT, lambda _: {"prompt": WORDS * 100_000, "truncate_prompt_tokens": 5}),
    "random model names": posts(CHAT, lambda n: chat(model=f"{n}" * 100)),
    "uploads (files)": stored.uploads,
    "batches of hostile lines": stored.batches,
    "adapters from everywhere": stored.adapters,
    "1,000 requests in a pipeline": connections.pipelined,
    "chunks of one byte": connections.tiny_chunks,
    "chunks with extensions of 50 KB": connections.chunk_extensions,
    "a chunk extension of 5 MB without end": connections.endless_extensions,
    "clients that send nothing more": connections.half_closed,
    "targets of 60 KB": connections.long_targets,
    "Expect: 100-continue, 100 at once": connections.expectations,
    "connections opened and closed": connections.churn,
    "scrapes and probes without a pause": connections.scrapes,
    "64 scrapes at a time": connections.scrape_flood,
    "odd headers": connections.odd_headers,
    "not HTTP by the letter (M)": not_http,
    "random methods and paths without a key (E, M)": methods_and_paths,
    "wrong keys in pipelines on 400 connections": floods.flood(floods.without_key, 400),
    "small requests in pipelines on 400 connections": floods.flood(floods.tokenized, 400),
    "/version in pipelines on 400 connections": floods.flood(floods.versions, 400),
    "pipelines that are not read": floods.flood(floods.versions, 200, read=False),
    "preflight requests in pipelines on 400 connections": floods.flood(floods.preflights, 400),
    "queries that are too long in pipelines on 400 connections": floods.flood(floods.long_queries, 400),
    "connections reset at every stage": floods.resets,
    "half a request on 1,500 connections": held(lambda target: target.head("/v1/models", 1 << 20, "GET"), 1500),
    "trailers byte by byte": held(connections.slow_trailers, 200, 0.3),
    "more that is not HTTP by the letter (M)": connections.more_letters,
    "upgrades to other protocols": connections.upgrades,
    "heads byte by byte on kept connections (M)": connections.heads_on_kept_connections,
    "cancelled at any byte": connections.cancelled_at_any_byte,
    "500 clients that leave at once": connections.all_at_once,
    "errors that are not read": unread("/v1/responses", {"input": "x", "n" * 7_000_000: 1}, 24),
    "keys where a log might keep them": secrets.keys_everywhere,
    **probes.PROBES,
    **stored.STORED,
    **shapes.SHAPES,
    **corners.CORNERS,
    **unread_bytes.UNREAD,
    **together.TOGETHER,
    **adapter_files.ADAPTERS,
    **sockets.SOCKETS,
    **bodies.BODIES,
    **patterns.PATTERNS,
    **odd_headers.HEADERS,
    **odd_fields.FIELDS,
    **odd_batches.BATCH_LINES,
    **tenants.TENANTS,
    **claims.CLAIMS,
    **claims.RANKED,
}  # fmt: skip
ATTACKS |= {
    f"{several_keys.KEYS} keys: {name}": several_keys.by_several_keys(attack)
    for name, attack in (
        ("new grammars of 1,500 rules, 120 at once", posts(CHAT, lambda n: chat(guided_grammar=rules(n)), 120)),
        ("128 answers, 24 at once", posts(TEXT, lambda n: {"prompt": f"{n}", "n": 128, "max_tokens": 40}, 24)),
        ("131,000 characters to /tokenize", ATTACKS["131,000 characters to /tokenize"]),
        ("8 MB chats that are too long", posts(CHAT, lambda _: chat(WORDS * 200_000), 16)),
        ("prompts of 6,500 tokens", ATTACKS["prompts of 6,500 tokens"]),
        ("128 answers to each of 24 prompts of 8,000 tokens", posts(TEXT, together.many_answers, 24)),
        ("8 MB of tools in streams that are not read", ATTACKS["8 MB of tools in streams that are not read"]),
        ("schemas and patterns in long texts (G, H)", ATTACKS["schemas and patterns in long texts (G, H)"]),
        ("schemas that multiply (H)", ATTACKS["schemas that multiply (H)"]),
        ("odd JSON", ATTACKS["odd JSON"]),
        *patterns.PATTERNS.items(),
        ("very many items to /v1/responses", ATTACKS["very many items to /v1/responses"]),
        ("answers that use up the KV cache", posts(TEXT, lambda n: {"prompt": f"{n}", **_FILLING}, 32)),
    )
}


def at_once(names: Sequence[str]) -> Attack:
    """Return an attack that is several others at the same time."""

    async def attack(target: Target) -> None:
        await asyncio.gather(*(ATTACKS[name](target) for name in names), return_exceptions=True)

    return attack


ATTACKS |= {
    f"eight attacks at once, {number}": at_once(random.Random(number).sample(sorted(ATTACKS), 8)) for number in range(3)
}
