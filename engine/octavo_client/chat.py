"""`octavo-engine chat URL`: a small chat in the terminal, with any server that speaks OpenAI's API."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import httpx2

from octavo_client import api
from octavo_client.argument_types import number_within
from octavo_client.errors import BrokenStreamError, ClientError

_HELP = "/quit ends, /new forgets the conversation, Ctrl-C stops an answer, /help prints this again\n"
_ANSWER_TIMEOUT = 600.0
_SHOWN = 16
"""The most names of models in an error."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `octavo-engine chat`."""
    api.add_server_arguments(parser)
    parser.add_argument("--system", help="system message before the conversation")
    parser.add_argument(
        "--temperature",
        type=number_within(0, 2),
        metavar="T",
        help="0: always the likeliest word (default: the server's, usually 1)",
    )


class Conversation:
    """A conversation with one model of a server. `sampling` are fields of each request, such as `temperature`."""

    def __init__(self, http: httpx2.Client, base: str, model: str, system: str | None, **sampling: float) -> None:
        self._http = http
        self._base = base
        self._model = model
        self._sampling = sampling
        self._system = [{"role": "system", "content": system}] if system else []
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        """Start over with only the system message."""
        self._messages = []

    def ask(self, question: str) -> Generator[str, None, None]:
        """Yield the answer piece by piece; the question and the received part of the answer join the conversation.

        Raises ClientError if the server refuses or fails; if it sent nothing before, the conversation does not change.
        """
        asked = [*self._messages, {"role": "user", "content": question}]
        answer = ""
        try:
            for piece in self._stream([*self._system, *asked]):
                answer += piece
                yield piece
        except httpx2.HTTPError as error:
            raise ClientError(f"{self._base}: {error or type(error).__name__}") from None
        finally:
            if answer:
                self._messages = [*asked, {"role": "assistant", "content": answer}]

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        body = {"model": self._model, "messages": messages, "stream": True, **self._sampling}
        url, content = f"{self._base}/chat/completions", api.json_body(body)
        with self._http.stream("POST", url, content=content, headers=api.JSON_HEADERS) as response:
            if response.status_code != 200:
                raise ClientError(api.error_message(response.read()))
            for line in api.lines_of(response):
                if (event := api.event_of(line)) is None:
                    continue
                if not event:
                    return
                yield _content(event)
        raise BrokenStreamError("the connection ended before the answer did")


def _content(event: Mapping[str, Any]) -> str:
    delta = next((choice.get("delta") for choice in api.choices_of(event)), None)
    return str(delta.get("content") or "") if isinstance(delta, dict) else ""


def _model(http: httpx2.Client, base: str, wanted: str | None) -> str:
    """Return the model to talk to: `wanted`, or the server's first; ClientError if the server does not list it."""
    try:
        names = api.model_names(base, http.get(f"{base}/models"))
    except httpx2.HTTPError as error:
        raise api.no_answer(base, error) from None
    if wanted is not None and wanted not in names:
        raise ClientError(f"--model {wanted}: {base} does not serve it; it serves {', '.join(names[:_SHOWN])}")
    return wanted or names[0]


def _answer(conversation: Conversation, question: str) -> None:
    pieces = conversation.ask(question)
    try:
        for piece in pieces:
            sys.stdout.write(piece)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except ClientError as error:
        sys.stdout.write(f"[{error}]")
    finally:
        pieces.close()
    sys.stdout.write("\n")


def run(args: argparse.Namespace) -> int:
    """Read questions from standard input until it ends or /quit comes, and print each answer; returns the exit code."""
    base = api.api_base(args.url)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a pipe may be in another encoding than the locale's
    with httpx2.Client(
        headers=api.headers(api.api_key_of(args, os.environ)),
        timeout=api.timeouts(_ANSWER_TIMEOUT),
        mounts=api.NO_LOCAL_PROXY,
    ) as http:
        model = _model(http, base, args.model)
        sampling = {} if args.temperature is None else {"temperature": args.temperature}
        conversation = Conversation(http, base, model, args.system, **sampling)
        sys.stdout.write(f"{model} at {base}: {_HELP}")
        while True:
            try:
                question = input("> ").strip()
                if not sys.stdin.isatty():  # else the terminal has shown it
                    sys.stdout.write(f"{question}\n")
            except (EOFError, KeyboardInterrupt):
                sys.stdout.write("\n")
                return 0
            if question == "/quit":
                return 0
            if question == "/new":
                conversation.forget()
            elif question == "/help":
                sys.stdout.write(_HELP)
            elif question:
                _answer(conversation, question)
