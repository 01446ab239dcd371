"""`octavo-engine chat URL`: a small chat in the terminal, with any server that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Iterator
from typing import Any

import httpx2

from octavo_engine.errors import OctavoError

_HELP = "/quit ends, /new forgets the conversation, Ctrl-C stops an answer\n"
_ANSWER_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `octavo-engine chat`."""
    parser.add_argument(
        "url", metavar="URL", help="base URL of an OpenAI-compatible server, such as http://localhost:8000"
    )
    parser.add_argument("--model", help="name of the model (default: the first of /v1/models)")
    parser.add_argument("--api-key", help="sent as a bearer token")
    parser.add_argument("--system", help="what the model is told before the conversation")


class Conversation:
    """A server, a model and what has been said."""

    def __init__(self, http: httpx2.Client, base: str, model: str, system: str | None) -> None:
        self._http = http
        self._base = base
        self._model = model
        self._system = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        """Start over."""
        self._messages = []

    def ask(self, question: str) -> Generator[str, None, None]:
        """The answer piece by piece. Question and answer, as far as it came, become part of the conversation.

        OctavoError if the server refuses or fails; then the conversation stays as it was.
        """
        asked = [*self._messages, {"role": "user", "content": question}]
        said = ""
        try:
            for piece in self._stream([*self._system, *asked]):
                said += piece
                yield piece
        except httpx2.HTTPError as error:
            raise OctavoError(f"{self._base}: {error or type(error).__name__}") from None
        finally:
            if said:
                self._messages = [*asked, {"role": "assistant", "content": said}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        body = {"model": self._model, "messages": messages, "stream": True}
        with self._http.stream("POST", f"{self._base}/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise OctavoError(_message(response.read()))
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield _content(json.loads(data))
        raise OctavoError("the connection ended before the answer did")


def _content(event: dict[str, Any]) -> str:
    if event.get("error"):
        raise OctavoError(str(event["error"].get("message", event["error"])))
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return content[:200].decode(errors="replace")


def _first_model(http: httpx2.Client, base: str) -> str:
    try:
        response = http.get(f"{base}/models")
    except httpx2.HTTPError as error:
        raise OctavoError(f"no answer from {base}: {error or type(error).__name__}") from None
    if response.status_code != 200:
        raise OctavoError(f"{base}/models: {_message(response.content)}")
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise OctavoError(f"{base}/models lists no model; name one with --model") from None


def _answer(conversation: Conversation, question: str) -> None:
    pieces = conversation.ask(question)
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except OctavoError as error:
        sys.stdout.write(f"[{error}]")
    finally:
        pieces.close()
    sys.stdout.write("\n")


def run(args: argparse.Namespace) -> int:
    """The command: reads questions from standard input until it ends or /quit comes."""
    base = args.url.rstrip("/")
    base = base if base.endswith("/v1") else f"{base}/v1"
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    timeout = httpx2.Timeout(_ANSWER_TIMEOUT, connect=_CONNECT_TIMEOUT)
    with httpx2.Client(headers=headers, timeout=timeout) as http:
        model = args.model or _first_model(http, base)
        conversation = Conversation(http, base, model, args.system)
        sys.stdout.write(f"{model} at {base}: {_HELP}")
        while True:
            try:
                question = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                sys.stdout.write("\n")
                return 0
            if question == "/quit":
                return 0
            if question == "/new":
                conversation.forget()
            elif question:
                _answer(conversation, question)
