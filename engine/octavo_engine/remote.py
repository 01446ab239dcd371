"""What `bench` and `chat` need to know of any server with OpenAI's API."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

import httpx2

from octavo_engine.errors import OctavoError

_CONNECT_TIMEOUT = 10.0


class BrokenStreamError(OctavoError):
    """The server's stream is not what OpenAI's API describes."""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """URL, model and key."""
    parser.add_argument(
        "url", metavar="URL", help="base URL of an OpenAI-compatible server, such as http://localhost:8000"
    )
    parser.add_argument("--model", help="name of the model (default: the first of /v1/models)")
    parser.add_argument("--api-key", help="sent as a bearer token")


def api_base(url: str) -> str:
    """The URL that ends in /v1."""
    base = url.rstrip("/")
    return base if base.endswith("/v1") else f"{base}/v1"


def headers(api_key: str | None) -> dict[str, str]:
    """What every request carries."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def timeouts(silence: float) -> httpx2.Timeout:
    """So many seconds of silence end a request."""
    return httpx2.Timeout(silence, connect=_CONNECT_TIMEOUT)


def no_answer(base: str, error: httpx2.HTTPError) -> OctavoError:
    """The error to raise when a request could not be sent or answered."""
    return OctavoError(f"no answer from {base}: {error or type(error).__name__}")


def first_model(base: str, response: httpx2.Response) -> str:
    """The first name in an answer to /v1/models; OctavoError if there is none."""
    if response.status_code != 200:
        raise OctavoError(f"{base}/models answers {response.status_code}: {error_message(response.content)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise OctavoError(f"{base}/models lists no model; name one with --model") from None


def error_message(content: bytes) -> str:
    """What an error answer says, or its beginning if it has not OpenAI's shape."""
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return content[:200].decode(errors="replace")


def event_of(line: str) -> Mapping[str, Any] | None:
    """The object in a line of a stream; empty at [DONE]'s, None for a line without data.

    OctavoError if it is the server's error event, BrokenStreamError if it is no object at all.
    """
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or not data:
        return None
    if data == "[DONE]":
        return {}
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BrokenStreamError(f"the server's stream holds an event that is no JSON: {data[:100]!r}") from None
    if not isinstance(event, dict) or not event:
        raise BrokenStreamError(f"the server's stream holds an event that is no object: {data[:100]!r}")
    if error := event.get("error"):
        raise OctavoError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
    return event


def choices_of(event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The choices of an event; none if it has none."""
    choices = event.get("choices")
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []
