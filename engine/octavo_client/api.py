"""What all clients of this package share of OpenAI's API: URLs, headers, timeouts, errors, events of a stream."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx2

from octavo_client.errors import BrokenStreamError, ClientError, UsageError

_CONNECT_TIMEOUT = 10.0
KEY_VARIABLE = "OCTAVO_API_KEY"
JSON_HEADERS = {"Content-Type": "application/json"}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
NO_LOCAL_PROXY = {"all://localhost": None, "all://127.0.0.1": None, "all://[::1]": None}
"""The `mounts` of a client: a proxy (HTTP_PROXY) is not used for this machine itself, which it could not reach."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a server: its URL, a model and a key."""
    parser.add_argument(
        "url", metavar="URL", help="base URL of an OpenAI-compatible server, such as http://localhost:8000"
    )
    parser.add_argument("--model", help="name of the model (default: the first of /v1/models)")
    keys = parser.add_mutually_exclusive_group()
    text = f"file with the API key (default: {KEY_VARIABLE} of the environment)"
    keys.add_argument("--api-key-file", type=Path, metavar="FILE", help=text)
    keys.add_argument(
        "--api-key",
        metavar="KEY",
        help="the key itself, which other users of the machine can see in the list of processes",
    )


def api_key_of(args: argparse.Namespace, environ: Mapping[str, str]) -> str | None:
    """Return the key to send, None without one; UsageError if it cannot be read, or cannot be sent in a header."""
    path: Path | None = args.api_key_file
    try:
        given = args.api_key if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--api-key-file {path}: cannot be read: {why}") from None
    source = "--api-key" if path is None else f"--api-key-file {path}"
    if given is None:
        given, source = environ.get(KEY_VARIABLE), KEY_VARIABLE
    if given is None:
        return None
    key = str(given).strip()
    if not key or not key.isascii() or not key.isprintable():
        raise UsageError(f"{source}: holds no API key; it must be one line of ASCII characters")
    return key


def api_base(url: str) -> str:
    """Return the URL with /v1 at its end, whether or not it was given; UsageError if it is not an http(s) URL."""
    return f"{server_url(url)}/v1"


def server_url(url: str) -> str:
    """Return the URL without /v1; UsageError if it is not an http(s) URL."""
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url}: a server's URL begins with http:// or https://; try http://{url.rpartition('://')[2]}"
        )
    try:
        problem = "" if httpx2.URL(url).host else "it names no host"
    except httpx2.InvalidURL as error:
        problem = str(error)
    if problem:
        raise UsageError(f"{url}: not a URL of a server, such as http://localhost:8000: {problem}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def headers(api_key: str | None) -> dict[str, str]:
    """Return the headers of every request."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def json_body(fields: Mapping[str, Any]) -> bytes:
    """Return the body of a request, to be sent with JSON_HEADERS.

    A `?` replaces what is not Unicode, such as input in the encoding Latin-1.
    """
    return json.dumps(fields, ensure_ascii=False).encode(errors="replace")


def timeouts(silence: float) -> httpx2.Timeout:
    """Return timeouts that end a request after `silence` seconds without a byte from the server."""
    return httpx2.Timeout(silence, connect=_CONNECT_TIMEOUT)


def no_answer(base: str, error: httpx2.HTTPError) -> ClientError:
    """Return the error to raise when a request could not be sent or was not answered."""
    why = without_number(str(error)) or type(error).__name__
    hint = "; is the server up? octavo-engine serve prints its URL" if isinstance(error, httpx2.ConnectError) else ""
    return ClientError(f"no answer from {base}{through_proxy(base)}: {why}{hint}")


def through_proxy(url: str) -> str:
    """Return ` through the proxy of HTTP_PROXY` if requests to `url` go through one, else an empty text."""
    scheme, host = httpx2.URL(url).scheme, httpx2.URL(url).host
    if host in _LOCAL_HOSTS or proxy_bypass(host):
        return ""
    return next((f" through the proxy of {each.upper()}_PROXY" for each in (scheme, "all") if each in getproxies()), "")


def without_number(message: str) -> str:
    """Return a system's message without its `[Errno 111]`, which means nothing to a reader."""
    return re.sub(r"^\[Errno -?\d+\] ", "", message)


def model_names(base: str, response: httpx2.Response) -> list[str]:
    """Return the names in an answer of /v1/models; raises ClientError if there is none."""
    if response.status_code != 200:
        ways = f"; give one in {KEY_VARIABLE}, or with --api-key-file FILE (kubectl octavo: --api-key-secret SECRET)"
        hint = ways if response.status_code == 401 else ""
        raise ClientError(f"{base}/models answers {response.status_code}: {error_message(response.content)}{hint}")
    try:
        names = [str(model["id"]) for model in response.json()["data"]]
    except (ValueError, KeyError, TypeError):
        names = []
    if not names:
        raise ClientError(f"{base}/models lists no model; is this an OpenAI-compatible server?")
    return names


def error_message(content: bytes) -> str:
    """Return the message of an error answer, or the answer's beginning if it does not have OpenAI's shape."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return " ".join(content[:200].decode(errors="replace").split())


class _LineSplitter:
    """Splits the bytes of a stream into lines, as they arrive. Only a line feed ends one.

    `iter_lines` also ends lines at U+0085, U+2028 and U+2029, which the JSON of an event may contain as they are.
    """

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, part: bytes) -> list[str]:
        """Return the lines that end in `part`."""
        *lines, self._begun = (self._begun + part).split(b"\n")
        return [line.decode(errors="replace") for line in lines]


def lines_of(response: httpx2.Response) -> Iterator[str]:
    """Yield the lines of a stream."""
    splitter = _LineSplitter()
    for part in response.iter_bytes():
        yield from splitter.feed(part)
    yield from splitter.feed(b"\n")


async def async_lines_of(response: httpx2.Response) -> AsyncIterator[str]:
    """Yield the lines of a stream of an asynchronous client."""
    splitter = _LineSplitter()
    async for part in response.aiter_bytes():
        for line in splitter.feed(part):
            yield line
    for line in splitter.feed(b"\n"):
        yield line


def event_of(line: str) -> Mapping[str, Any] | None:
    """Return the JSON object in a line of a stream: empty for [DONE], None for a line without data.

    Raises ClientError if the object is the server's error event, BrokenStreamError if the data is not a JSON object.
    """
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or not data:
        return None
    if data == "[DONE]":
        return {}
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError(f"the server's stream holds an event that is not JSON: {data[:100]!r}") from None
    if not isinstance(event, dict) or not event:
        raise BrokenStreamError(f"the server's stream holds an event that is not an object: {data[:100]!r}")
    if error := event.get("error"):
        raise ClientError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
    return event


def choices_of(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices of an event; an event without any gives an empty list."""
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
