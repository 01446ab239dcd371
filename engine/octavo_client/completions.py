"""Timed, streamed requests to a server's /v1/completions."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2

from octavo_client import api
from octavo_client.errors import BrokenStreamError, ClientError
from octavo_client.figures import Timing
from octavo_client.workload import Prompt

_END_SECONDS = 1.0
"""The longest wait for the end of a response after its last event. Only a response that was read to its end leaves its
connection to the next request; a new connection would add to that request's time to the first token."""


class Client:
    """A client of the server under test, with as many connections as there are requests at once."""

    def __init__(self, url: str, api_key: str | None, timeout: float) -> None:
        self.base = api.api_base(url)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(
            headers=api.headers(api_key), timeout=api.timeouts(timeout), limits=limits, mounts=api.NO_LOCAL_PROXY
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def first_model(self) -> str:
        """Return the first name that /v1/models lists; raises ClientError if nothing answers or none is listed."""
        try:
            return api.model_names(self.base, await self._http.get(f"{self.base}/models"))[0]
        except httpx2.HTTPError as error:
            raise api.no_answer(self.base, error) from None

    async def complete(self, model: str, prompt: Prompt, ignore_eos: bool, due: float | None = None) -> Timing:
        """Time one greedy completion, from `due` (`time.perf_counter`) or from now.

        A failure is the timing's `error`; nothing that the server does is raised.
        """
        timing = Timing(asked_tokens=prompt.output_len)
        body = {
            "model": model,
            "prompt": prompt.text,
            "max_tokens": prompt.output_len,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | ({"ignore_eos": True} if ignore_eos else {})
        start = time.perf_counter() if due is None else due
        try:
            url, content = f"{self.base}/completions", api.json_body(body)
            async with self._http.stream("POST", url, content=content, headers=api.JSON_HEADERS) as response:
                if response.status_code != 200:
                    timing.error = f"{response.status_code}: {api.error_message(await response.aread())}"
                    return timing
                lines = api.async_lines_of(response)
                await _read_stream(lines, start, timing)
                await _read_to_end(lines)
        except (httpx2.HTTPError, ClientError) as error:
            timing.error = str(error) or type(error).__name__
        return timing


async def _read_stream(lines: AsyncIterator[str], start: float, timing: Timing) -> None:
    """Read a stream to its end into `timing`; raises ClientError for the server's error or a broken stream."""
    last = math.nan
    pieces = 0
    async for line in lines:
        if (event := api.event_of(line)) is None:
            continue
        if not event:
            timing.end = time.perf_counter() - start
            timing.output_tokens = timing.output_tokens or pieces
            return
        _take_usage(event.get("usage"), timing)
        if any(choice.get("text") for choice in api.choices_of(event)):
            arrived = time.perf_counter()
            if pieces == 0:
                timing.first_token = arrived - start
            else:
                timing.between.append(arrived - last)
            pieces, last = pieces + 1, arrived
    raise BrokenStreamError("the stream ended without [DONE]")


async def _read_to_end(lines: AsyncIterator[str]) -> None:
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(_END_SECONDS):
            async for _ in lines:
                pass


def _take_usage(usage: Any, timing: Timing) -> None:
    """Copy the token counts of an event. A server may omit them: then pieces of text count as tokens."""
    if isinstance(usage, dict):
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        timing.prompt_tokens = prompt if isinstance(prompt, int) else timing.prompt_tokens
        timing.output_tokens = output if isinstance(output, int) else timing.output_tokens
