"""Attacks with bodies whose parts multiply, are nested, or are texts within texts; and with files and batches."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

from bench.hostile.kinds import Attack, posts, users
from bench.hostile.shapes import said
from bench.hostile.stored import BATCHES, CHAT, FILES, line, stored_file
from bench.hostile.wire import Target, answer_of

TEXT, RESPONSES, MESSAGES = "/v1/completions", "/v1/responses", "/v1/messages"
WORDS = "lorem ipsum dolor sit amet consectetur "


def nested(depth: int, *, lists: bool = False) -> Any:
    """Return an object or a list that is nested `depth` deep."""
    found: Any = 1
    for _ in range(depth):
        found = [found] if lists else {"a": found}
    return found


_BUILT_IN = ("messages", "bos_token", "add_generation_prompt", "raise_exception", "strftime_now", "range")


def template_arguments(number: int) -> dict[str, Any]:
    """Return a chat with arguments for the template: nested, huge, or in the place of what it has already."""
    kinds: tuple[dict[str, Any], ...] = (
        {"x": nested(100 + number % 800)}, {"x": nested(900, lists=True)}, dict.fromkeys(_BUILT_IN, nested(3)),
        dict.fromkeys(_BUILT_IN, "{% for i in range(10**9) %}"), {f"x{each}": each for each in range(100_000)},
        {"documents": [{"title": "x", "text": WORDS * 2}] * 80}, {"enable_thinking": [True] * 250},
        {"__class__": "x", "self": 1, "loop": 1, "namespace": 5}, {"x" * 900_000: 1},
    )  # fmt: skip
    return said(chat_template_kwargs=kinds[number % len(kinds)])


def parts(number: int) -> dict[str, Any]:
    """Return a chat whose contents have very many parts, or parts of odd kinds."""
    text = {"type": "text", "text": "x"}
    kinds: tuple[Any, ...] = (
        [text] * 60_000, [{"type": "text", "text": ""}] * 1024, [text, {"type": "refusal", "refusal": "y"}] * 512,
        [{"type": "image_url", "image_url": {"url": "data:image/svg+xml,<svg/>" + "x" * 40}}] * 9000,
        [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}] * 9000,
        [{"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 400_000}}] * 5,
        [[text] * 100] * 100, [{"type": "text", "text": {"x": nested(200)}}], [{"type": "x" * 100_000}] * 20,
    )  # fmt: skip
    return said(kinds[number % len(kinds)])


def deep_tools(number: int) -> dict[str, Any]:
    """Return a chat with tools whose parameters are nested, or whose names are patterns and templates."""
    names = ("(a+)+$", "a" * 64, "{{x}}", "..", "a\nb", "\u202e", "f")
    form: Any = {"type": "string"}
    for each in range(2 + number % 30):
        form = {"type": "object", "properties": {f"p{each}": form, "q": {"type": "array", "items": {"enum": [each]}}}}
    tools = [
        {"type": "function", "function": {"name": f"{name}{each}", "description": "{% raw %}" * 9, "parameters": form}}
        for each, name in enumerate(names[-1:] * 6 if number % 4 else names)
    ]
    return said(tools=tools, tool_choice=("auto", "required", "none")[number % 3], max_tokens=20)


_TOKENS = ([200] * 90_000, [0, 1, 2] * 30_000, list(range(49_000)), [49_151] * 90_000, [100, 48_000] * 45_000)


def texts_in_texts(number: int) -> dict[str, Any]:
    """Return a chat with a schema or a regular expression that is written as a long text."""
    kinds: tuple[dict[str, Any], ...] = (
        {"guided_json": json.dumps({"enum": [f"{number} {each}" for each in range(1000)]})},
        {"guided_json": "[" * 200_000}, {"guided_json": '{"a":' * 9000 + "1" + "}" * 9000},
        {"guided_json": json.dumps({"const": nested(50, lists=True)})}, {"guided_regex": "\\" * 200_000},
        {"guided_grammar": "start: " + " ".join(f'"{number}{each}"' for each in range(9000))},
        {"guided_grammar": f"// {'x' * 200_000}\nstart: \"{number}\""}, {"guided_choice": ["xy" * 2000] * 60},
        {"guided_grammar": "\n".join(f"T{n}: /[a-z]{{{n}}}.*x{n}/" for n in range(1, 400)) + "\nstart: ("
                           + " | ".join(f"T{n}" for n in range(1, 400)) + ")+"},
        {"guided_regex": f"(?i)([\\p{{L}}\\p{{N}}]|[\\p{{Greek}}]){{1,300}}{number}"},
        {"guided_regex": "(?i)" + "|".join(f"[\\w--{chr(0x400 + each)}]+" for each in range(300))},
        {"guided_regex": "|".join(f"\\u{{{0x4e00 + (each * 37 + number) % 20_000:x}}}+" for each in range(3000))},
    )  # fmt: skip
    return said(**kinds[number % len(kinds)], max_tokens=40)


def multiplied(number: int) -> dict[str, Any]:
    """Return a request whose prompts and answers multiply, streamed or not."""
    kinds: tuple[dict[str, Any], ...] = (
        {"prompt": [f"{number} {each} {WORDS * 20}" for each in range(32)], "n": 4, "max_tokens": 4},
        {"prompt": f"{number} {WORDS * 100}", "echo": True, "n": 64, "max_tokens": 4},
        {"prompt": f"{number}", "n": 128, "max_tokens": 60, "stream": True, "return_token_ids": True,
         "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"prompt": [[5 + number % 900] * 200] * 32, "prompt_logprobs": 5, "max_tokens": 1},
        {"prompt": [""] * 32, "max_tokens": 3}, {"prompt": ["x"] * 2000}, {"prompt": f"{number}", "best_of": 128},
        {"prompt": f"{number}", "n": 32, "logprobs": 20, "max_tokens": 60, "stream": True},
    )  # fmt: skip
    return {"ignore_eos": True, **kinds[number % len(kinds)]}


def halves_of_characters(number: int) -> dict[str, Any]:
    """Return a request whose prompt and answer are bytes that are no whole characters, echoed or scored."""
    forced = {"logit_bias": {str(128 + (number + each) % 110): 100 for each in range(3)}, "ignore_eos": True}
    kinds: tuple[dict[str, Any], ...] = (
        {"prompt": [130 + number % 100] * 3000, "echo": True, "logprobs": 20, "max_tokens": 2},
        {"prompt": f"{number}", "n": 32, "max_tokens": 300, "stream": True, "stop": ["\ufffd\ufffd", "\u00e9" * 64]},
        {"prompt": [130, 5] * 500, "n": 4, "max_tokens": 500, "logprobs": 5, "stream": True},
        {"prompt": f"{number}", "n": 64, "max_tokens": 100, "skip_special_tokens": False},
    )  # fmt: skip
    return forced | kinds[number % len(kinds)]


def common_beginnings(number: int) -> dict[str, Any]:
    """Return prompts that share their first half with some others, so that the prefix cache has very many branches."""
    shared = [[7 + number % 5] * 700, [11 + number % 97] * 16 * (1 + number % 40)][number % 2]
    return {"prompt": [*shared, *([number % 40_000 + 30] * 300)], "max_tokens": 2, "n": 2}


def pooled(number: int) -> dict[str, Any]:
    """Return a long input for an embedding."""
    return {"input": [[number % 900 + 5] * 8000] * (1 + number % 2), "encoding_format": ("float", "base64")[number % 2]}


def anthropic(number: int) -> dict[str, Any]:
    """Return a request to /v1/messages with tools, thinking and results that are nested or many."""
    text = {"type": "text", "text": WORDS, "cache_control": {"type": "ephemeral"}}
    tool = {"name": "f", "description": "x" * 900, "input_schema": {"type": "object", "properties": nested(60)}}
    kinds: tuple[dict[str, Any], ...] = (
        {"tools": [{**tool, "name": f"f{each}"} for each in range(9)], "tool_choice": {"type": "any"}},
        {"thinking": {"type": "enabled", "budget_tokens": 10**6}}, {"stop_sequences": ["x" * 256] * 4},
        {"system": [text] * 20_000}, {"metadata": {"user_id": "u" * 4_000_000}},
        {"messages": [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": WORDS * 9000, "signature": "s" * 900_000}]}] * 3},
        {"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": f"t{each}", "content": nested(80)} for each in range(4000)]}]},
    )  # fmt: skip
    asked = {"model": "smollm2", "max_tokens": 4, "messages": [{"role": "user", "content": f"{number}"}]}
    return asked | kinds[number % len(kinds)]


async def vanishing_files(target: Target) -> None:
    """Files that are read, checked by batches, listed and deleted at the same moment."""
    content = b"".join(line(each) for each in range(30_000))

    async def user(_: int) -> None:
        while target.open:
            path = await stored_file(target, content)
            asked = {"input_file_id": path.rpartition("/")[2], "endpoint": CHAT, "completion_window": "24h"}
            body = json.dumps(asked).encode()
            begun = [target.raw(target.head(f"{path}/content", 0, "GET")) for _ in range(4)]
            begun += [target.raw(target.head(path, 0, "DELETE")) for _ in range(2)]
            batch = answer_of(await target.ask(target.head(BATCHES, len(body)) + body)).get("id")
            await asyncio.gather(*begun, target.raw(target.head(f"{BATCHES}/{batch}/cancel", 0)))
            await target.raw(target.head(path, 0, "DELETE"))

    await users(6, user)


_LARGE_LINES = (
    b"".join(line(each, messages=[{"role": "user", "content": "z" * 900_000}]) for each in range(30)),
    b"{}\n" * 900_000,
    b"".join(line(1) for _ in range(100_000)),
    b"".join(line(each).replace(b"/v1/chat/completions", b"/v1/nowhere") for each in range(60_000)),
    b"\xff\xfe" * 4_000_000,
    b"".join(line(each, guided_json={"enum": [f"{each}"] * 900}) for each in range(2000)),
)  # fmt: skip


async def odd_batches(target: Target) -> None:
    """Batches of very large lines, of a million empty ones, of equal ids, whose results are never fetched."""
    numbers = itertools.count()

    async def user(_: int) -> None:
        while target.open:
            path = await stored_file(target, _LARGE_LINES[next(numbers) % len(_LARGE_LINES)])
            body = json.dumps(
                {"input_file_id": path.rpartition("/")[2], "endpoint": CHAT, "completion_window": "24h"}
            ).encode()
            batch = answer_of(await target.ask(target.head(BATCHES, len(body)) + body)).get("id")
            await asyncio.sleep(0.5)
            await target.raw(target.head(f"{BATCHES}/{batch}/cancel", 0))
            await target.raw(target.head(path, 0, "DELETE"))

    await users(6, user)


def stop_strings(number: int) -> dict[str, Any]:
    """Return a request with 64 strings to stop at, whose answer is nearly the last of them again and again."""
    stops = [*((f"z{each} " * 99)[:256] for each in range(63)), " a" * 127 + "b"]
    said: Any = {"model": "smollm2", "messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 900}
    return {**said, "stop_sequences": stops, "allowed_token_ids": [253], "ignore_eos": True, "stream": True}


def repeated_tools(number: int) -> dict[str, Any]:
    """Return a request with 8 MB of tools, none of which may be called; three events of its answer repeat them."""
    described = {"description": f"{number}" + "x" * 60_000, "parameters": {"type": "object"}}
    tools = [{"type": "function", "name": f"f{each}", **described} for each in range(128)]
    return {"input": "x", "tools": tools, "tool_choice": "none", "stream": True, "max_output_tokens": 300}


async def large_uploads(target: Target) -> None:
    """Files of 60 MB at full speed, 8 at once, which are deleted again."""
    content = b"x" * (60 << 20)

    async def user(_: int) -> None:
        while target.open:
            await target.raw(target.head(await stored_file(target, content), 0, "DELETE"))

    await users(8, user)


async def pages(target: Target) -> None:
    """Pages of lists and ids that are not there, on 64 connections."""
    kinds = [
        f"{FILES}?limit=1&after=file-{'0' * 32}", f"{FILES}?limit=10000&order=asc&purpose=" + "x" * 7000,
        f"{BATCHES}?limit=100&after=" + "%F0%9F%92%A9" * 500, f"{BATCHES}?limit=0", f"{FILES}/" + "x" * 8000,
        f"{FILES}/%2e%2e%2f%2e%2e%2fetc%2fpasswd/content", f"{BATCHES}/batch_{'f' * 32}", f"{FILES}?" + "&" * 8000,
    ]  # fmt: skip

    async def user(number: int) -> None:
        while target.open:
            await target.raw(target.head(kinds[number % len(kinds)], 0, "GET"))
            number += 7

    await users(64, user)


BODIES: dict[str, Attack] = {
    "arguments of templates (F)": posts(CHAT, template_arguments),
    "contents of 60,000 parts": posts(CHAT, parts),
    "tools with nested parameters and odd names (H)": posts(CHAT, deep_tools, 12),
    "ids of halves of characters to /detokenize": posts(
        "/detokenize", lambda n: {"tokens": _TOKENS[n % len(_TOKENS)]}, 16
    ),
    "schemas and patterns in long texts (G, H)": posts(CHAT, texts_in_texts, 12),
    "prompts × answers, echoed and streamed": posts(TEXT, multiplied, 16),
    "halves of characters in prompts and answers": posts(TEXT, halves_of_characters, 12),
    "prompts with common beginnings": posts(TEXT, common_beginnings, 24),
    "inputs of 8,000 tokens to /v1/embeddings": posts("/v1/embeddings", pooled, 16),
    "nested and long parts of /v1/messages": posts(MESSAGES, anthropic),
    "nested and long parts of /v1/messages/count_tokens": posts(f"{MESSAGES}/count_tokens", anthropic),
    "files that vanish while they are used": vanishing_files,
    "batches of large, empty and equal lines": odd_batches,
    "files of 60 MB at full speed": large_uploads,
    "pages of lists, and ids that are not there": pages,
    "64 strings to stop at in /v1/messages": posts(MESSAGES, stop_strings, 64),
    "8 MB of tools that answers repeat": posts("/v1/responses", repeated_tools, 16),
}  # fmt: skip
"""Attacks by name, as in `attacks.py`."""
