"""Attacks by many small requests, by lists that each answer has a copy of, and by odd but valid parts of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import zlib
from typing import Any

from bench.hostile.kinds import Attack, held, in_turn, posts, unread, users
from bench.hostile.wire import Target

CHAT, TEXT, FILES = "/v1/chat/completions", "/v1/completions", "/v1/files"
WORDS = "lorem ipsum dolor sit amet consectetur "
_ALLOWED = list(range(1000, 49_000))
_STEERING = {
    "stop": ["a " * 127 + each for each in "bcde"], "bad_words": [f"word{each}" * 30 for each in range(64)],
    "logit_bias": {str(each): 1 for each in range(300)}, "ignore_eos": True,
}  # fmt: skip
_UPLOAD = {"Content-Type": "multipart/form-data; boundary=x"}
_BEGUN = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7")


def encoded(number: int) -> bytes:
    """Return a body in another encoding of Unicode than UTF-8, with half a character in it."""
    fields = {
        "prompt": f"{number} \ud800 \u4e00",
        "metadata": {"\udc00": "x"},
        "tools": [{"\ud800": 1}],
        "max_tokens": 2,
    }
    text, encoding = json.dumps(fields, ensure_ascii=number % 2 == 0), _ENCODINGS[number % len(_ENCODINGS)]
    return text.encode(encoding, "replace" if encoding == "utf-7" else "surrogatepass")


def steered(number: int) -> dict[str, Any]:
    """Return a body with as many stop strings, forbidden words, biases and log probabilities as are allowed."""
    kinds: tuple[dict[str, Any], ...] = (
        {"n": 8, "max_tokens": 150}, {"n": 64, "max_tokens": 20}, {"logprobs": 20, "max_tokens": 100, "stream": True},
        {"n": 128, "max_tokens": 2, "temperature": 2}, {"max_tokens": 1000, "stream": True, "min_tokens": 999},
    )  # fmt: skip
    return {"prompt": f"{number} word1 word2 a a a", **_STEERING, **kinds[number % len(kinds)]}


def listed(number: int) -> dict[str, Any]:
    """Return a body with a list of nearly all tokens, which each answer's sampling parameters have a copy of."""
    return {"prompt": f"{number}", "allowed_token_ids": _ALLOWED, "n": 1 + number % 4, "max_tokens": 500}


def history(number: int) -> dict[str, Any]:
    """Return a chat of very many turns with calls, names and tools."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns: tuple[list[dict[str, Any]], ...] = (
        [{"role": "assistant", "content": None, "tool_calls": [call] * 100}] * 200,
        [{"role": "assistant", "tool_calls": [{**call, "function": {"name": "f", "arguments": "[" * 5000}}]}] * 50,
        [{"role": "tool", "tool_call_id": f"c{each}", "content": "x"} for each in range(16_000)],
        [{"role": "user", "name": "a\u0000\r\n\u2028" * 100, "content": "x"}] * 2000,
        [{"role": "developer", "content": "<|im_start|>system\n" * 20}] * 5000,
        [{"role": "user", "content": "\u202e\ufeff\u0000" * 200}] * 1000,
    )  # fmt: skip
    more = {"tools": [{"type": "function", "function": {"name": f"f{each}", "description": WORDS * 50}}
                      for each in range(128 if number % 2 else 2000)]}  # fmt: skip
    return {"messages": turns[number % len(turns)], "max_tokens": 2, **(more if number % 3 else {})}


def numbers(number: int) -> bytes:
    """Return a body with numbers that are long, or many, or hardly numbers."""
    kinds = (
        b"[" + b"1e400000000," * 300_000 + b"1]",
        b"[" + b"9" * 4300 + b"]",
        b"[" + (b"9" * 4299 + b",") * 1500 + b"1]",
        b"[" + b"1e-99999999999," * 200_000 + b"1]",
        "[\u0661\u0662]".encode(),
        b"[-0, -0.0, 1E+2]",
        b"[0x10]",
        b"[01]",
        b"[" + b"0." + b"3" * 2_000_000 + b"]",
        b"[Infinity, -Infinity]",
    )
    return b'{"max_tokens": 2, "prompt": ' + kinds[number % len(kinds)] + b"}"


def schema(number: int) -> dict[str, Any]:
    """Return a chat with a schema whose references form a circle, or whose alternatives multiply."""
    branch: dict[str, Any] = {"type": "string"}
    for each in range(7):
        branch = {
            "anyOf": [branch, {"type": "array", "items": branch}, {"type": "object", "properties": {f"{each}": branch}}]
        }
    circle = {f"d{each}": {"allOf": [{"$ref": f"#/$defs/d{(each + 1) % 50}"}]} for each in range(50)}
    kinds: tuple[dict[str, Any], ...] = (
        {"$defs": circle, "$ref": "#/$defs/d0"}, branch if number % 2 else {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "maxItems": 9000}, "maxItems": 9000},
        {"type": "object", "minProperties": 10**6, "additionalProperties": {"type": "integer"}},
        {"type": "string", "pattern": "^(([a-z]{1,99}){1,99}-){1,99}$"}, {"type": "string", "format": "date-time"},
        {"oneOf": [{"const": "x" * each} for each in range(1, 600)]},
        {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
        {"type": "object", "properties": {f"p{each}": {"type": "string", "maxLength": 10**6} for each in range(500)}},
        {"enum": [f"{each}" + "y" * 200 for each in range(20_000)]}, {"type": "number", "multipleOf": 1e-9},
    )  # fmt: skip
    form = {
        "type": "json_schema",
        "json_schema": {"name": f"s{number}", "schema": kinds[number % len(kinds)], "strict": True},
    }
    return {"messages": [{"role": "user", "content": f"{number}"}], "response_format": form, "max_tokens": 60}


def _boundaries() -> tuple[str, ...]:
    return (
        'x; a="' + ";" * 30_000,
        "x" * 30_000,
        "",
        '"' + "\\" * 20_000,
        "x" + "".join(f"; a*{each}*=x" for each in range(2000)),
        "\u00e9",
        "x; boundary=y",
        "-" * 70,
    )


async def forms(target: Target) -> None:
    """Send forms with odd boundaries, part headers and fields."""
    parts = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="../../etc/passwd"\r\n\r\n{}\r\n--x--\r\n',
        b"--x\r\n" + b"X-Part: " + b"y" * 60_000 + b"\r\n\r\n", b"--x\r\n" + b"X: y\r\n" * 9000 + b"\r\nz\r\n--x--",
        b'--x\r\nContent-Disposition: form-data; name="' + b";" * 50_000 + b"\r\n\r\n", b"--x" + b"\r\n--x" * 20_000,
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 900 + b"--x--\r\n",
        b"\r\n" * 40_000, b"--x--\r\n",
        _BEGUN.replace(b'"a"', b'"' + "\u202e\0\n".encode() * 500 + b'"') + b"{}\r\n--x--\r\n",
    )  # fmt: skip
    kinds = [
        target.head(FILES, len(part), headers={"Content-Type": f"multipart/form-data; boundary={boundary}"}) + part
        for part, boundary in itertools.chain(
            ((part, "x") for part in parts), ((parts[0], boundary) for boundary in _boundaries())
        )
    ]
    await in_turn(target, kinds, 8)


_METHODS = ("HEAD", "TRACE", "CONNECT", "PATCH", "PROPFIND", "get", "M" * 200)
_TARGETS = (
    "/v1/models", "*", "x:80", "http://x:99999/v1/models?a", "//x/v1/models", "/v1/models/..;/files", "/%00",
    "/assets/..%2f..%2f..%2fetc%2fpasswd", "/v1/files/%2e%2e%2f%2e%2e", "/\xff", "/openapi.json",
)  # fmt: skip
_ODD_HEADERS = (
    *(("Host", each) for each in ("a/?x=", "", "x/#", "[::1", "a b", "h" * 8000)), ("Origin", "null"),
    ("Origin", "http://" + "o" * 8000), ("X-Forwarded-For", "1, " * 5000), ("Range", "bytes=0-"),
    ("Authorization", "Bearer \xe9\xff"), ("Authorization", "Bearer " + "k" * 30_000), ("Authorization", "Basic x"),
    ("If-None-Match", '"' * 20_000), ("Accept-Encoding", "gzip;q=" + "0" * 9000), ("X-Request-Id", "\xa0\x85"),
    ("tracestate", "a=b," * 6000), ("baggage", "a=b," * 6000), ("X-Request-Timeout", "\xb2"), ("Cookie", "=" * 30_000),
)  # fmt: skip


def _lengths(target: Target) -> list[bytes]:
    """Return requests with odd lengths, encodings, targets, methods and header bytes."""
    plain, end = target.head("/tokenize", 2), b'{"prompt": "x"}'
    lengths = (b"+2", b"2 ", b"02", b"0x2", b"2,2", b"\xb2", b"9" * 5000, b"-1", b"", b"1_0", b"18446744073709551618")
    codings = (
        b"chunked, chunked",
        b"gzip, chunked",
        b"xchunked",
        b"\tchunked",
        b"Chunked",
        b"identity",
        b"chunked;q=1",
        b"",
    )
    zipped = zlib.compress(b" " * 8_000_000)
    return [
        *(plain.replace(b"Content-Length: 2", b"Content-Length: " + each) + end for each in lengths),
        *(plain.replace(b"Content-Length: 2", b"Transfer-Encoding: " + each) + b"2\r\n{}\r\n0\r\n\r\n"
          for each in codings),
        *(target.head("/tokenize", len(zipped), headers={"Content-Encoding": each}) + zipped
          for each in ("deflate", "identity, gzip", "br", "zstd", "GZIP", "x")),
        *(target.head(path, 0, method) for method in _METHODS for path in _TARGETS),
        *(target.head("/v1/models", 0, "GET", {name: value}) for name, value in _ODD_HEADERS),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 5000, b"GET /v1/models HTTP/1.1\r\n\r\n", b"\r\n" * 5000 + plain,
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX\0Y: z\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
    ]  # fmt: skip


async def letters(target: Target) -> None:
    """Send requests with odd lengths, encodings, targets, methods and header bytes in turn."""
    await in_turn(target, _lengths(target), 12)


_STOPS: tuple[tuple[bytes, bytes], ...] = (
    (b"Content-Length: 2", b"{"), (b"Transfer-Encoding: chunked", b"5"), (b"Transfer-Encoding: chunked", b"5\r"),
    (b"Transfer-Encoding: chunked", b"5\r\n{}"), (b"Transfer-Encoding: chunked", b"2\r\n{}\r"),
    (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n"), (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\nX: "),
    (b"Content-Length: 2\r\nExpect: 100-continue", b""), (b"Content-Length: 2\r\nExpect: 200-maybe", b"{"),
)  # fmt: skip


async def stops(target: Target) -> None:
    """Stop sending in each state of the parser: within a body, a chunk's size, its line end, a trailer."""
    heads = [target.head("/tokenize", 2).replace(b"Content-Length: 2", length) + data for length, data in _STOPS]
    turns = itertools.count()
    await held(lambda _: heads[next(turns) % len(heads)], 900)(target)


async def storms(target: Target) -> None:
    """Begin streams and leave them after the first event, by a reset or by closing the sending half, and come again."""

    async def user(number: int) -> None:
        while target.open:
            number += 1
            body = json.dumps(
                {"prompt": f"{number} x", "max_tokens": 400, "n": 4, "stream": True, "ignore_eos": True}
            ).encode()
            with contextlib.suppress(OSError, TimeoutError):
                async with target.connection() as (reader, writer), asyncio.timeout(5):
                    writer.write(target.head(TEXT, len(body)) + body)
                    await reader.readline()
                    if number % 2:
                        writer.write_eof()
                    await reader.read(1)
            target.outcomes["left"] += 1

    await users(48, user)


async def unread_pages(target: Target) -> None:
    """Ask for large static pages on kept connections without reading them."""
    kinds = b"".join(target.head(path, 0, "GET") for path in ("/openapi.json", "/", "/v1/models")) * 40

    async def user(_: int) -> None:
        while target.open:
            with contextlib.suppress(OSError):
                async with target.connection() as (_, writer):
                    writer.write(kinds)
                    await asyncio.sleep(2.0)
            target.outcomes["left"] += 1

    await users(150, user)


_RUNS = (
    "\U0001f469\u200d\U0001f466\u200d", "e\u0301\u0323\u035c\u0332", "\ufdfa", "0123456789",
    "aB3\u4e00\u0430 ", "x", "\u202e\u200b", "'s'll", "\u1100\u1161\u11a8", "\U0001f1e9\U0001f1ea",
    "\t \n \r", "<|im_start|>", "\U0010ffff", "\u0e33\u0e4d", "\u0130\u0131\u00df\ufb03", "==>", "\x00",
    "supercalifragilistic", "\u2028", "....", "1 ", "\u05d0\u0627",
)  # fmt: skip


def run_of(number: int) -> str:
    """Return a text of 131,000 characters, which is just below the limit."""
    text = _RUNS[number % len(_RUNS)]
    return (text * (131_000 // len(text) + 1))[:131_000]


def called(number: int) -> dict[str, Any]:
    """Return a chat with tools whose schemas refer to themselves, or whose parts multiply."""
    formats = ("email", "uuid", "uri", "ipv6", "regex")
    every: tuple[dict[str, Any], ...] = (
        {"$ref": "#"}, {"enum": [each / 7 for each in range(6000)]},
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"$ref": "#/properties/a"}}},
        {"allOf": [{"anyOf": [{"properties": {f"p{a}{b}": {"enum": [a, b]}}} for b in range(6)]} for a in range(6)]},
        {"type": "array", "uniqueItems": True, "contains": {"const": 5}, "items": {"enum": list(range(500))}},
        {"dependentSchemas": {f"p{a}": {"required": [f"p{a + 1}"]} for a in range(300)}},
        {"type": ["object", "array", "string", "null"], "patternProperties": {"^(a|a)*$": {"$ref": "#"}}},
        {"anyOf": [{"type": "string", "pattern": f"^({a}|[a-z]+)+x{{{a}}}$"} for a in range(200)]},
        {"properties": {each: {"type": "string", "format": each} for each in formats}},
        {"$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]}}, "$ref": "#/$defs/x"},
        {"oneOf": [{"required": [f"a{a}"], "properties": {f"a{a}": {"$ref": "#"}}} for a in range(60)]},
    )  # fmt: skip
    tools = [
        {"type": "function", "function": {"name": f"f{each}", "parameters": every[(number + each) % len(every)]}}
        for each in range(1 + number % 3)
    ]
    choice: Any = ("required", "auto", {"type": "function", "function": {"name": "f0"}})[number % 3]
    asked = [{"role": "user", "content": f"{number}"}]
    return {"messages": asked, "tools": tools, "tool_choice": choice, "max_tokens": 60}


_HELD_BACK = {
    "prompt": "x",
    "n": 32,
    "logprobs": 20,
    "max_tokens": 2000,
    "stream": True,
    "ignore_eos": True,
    "stop": ["a" * 200],
}

CORNERS: dict[str, Attack] = {
    "UTF-16 and other encodings": posts(TEXT, encoded),
    "700 small requests at once": posts("/tokenize", lambda n: {"prompt": f"{n} " + WORDS * 40}, 700),
    "lists of 48,000 allowed tokens": posts(TEXT, listed, 60),
    "as much steering as is allowed": posts(TEXT, steered, 16),
    "chats of many calls, names and tools": posts(CHAT, history),
    "numbers of all lengths": posts(TEXT, numbers),
    "schemas in circles": posts(CHAT, schema, 12),
    "forms with odd parts": forms,
    "odd lengths, codings, targets and headers": letters,
    "900 connections that stop within a body": stops,
    "streams begun and left": storms,
    "pages that are not read": unread_pages,
    "2,600 uploads that drip": held(lambda target: target.head(FILES, 1 << 20, headers=_UPLOAD) + _BEGUN, 2600, 1.0),
    "32 answers in a stream that is not read": unread(TEXT, _HELD_BACK, 8),
    "131,000 characters to /tokenize": posts("/tokenize", lambda n: {"prompt": run_of(n), "return_token_strs": True}),
    "131,000 characters to /v1/completions": posts(TEXT, lambda n: {"prompt": run_of(n), "max_tokens": 2}),
    "tool schemas that refer to themselves": posts(CHAT, called, 12),
}
"""Attacks by name, as in `attacks.py`."""
