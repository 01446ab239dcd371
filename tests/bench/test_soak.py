"""The soak's user, whose records decide whether a request was lost."""

from __future__ import annotations

import asyncio

import pytest

from bench.soak_client import ask
from bench.soak_losses import Client

STREAM = b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "one"}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (STREAM + b"data: [DONE]\n\n", ("complete", "one")),
        (STREAM + b'data: {"choices": [{"te', ("cut", "one")),
        (b'HTTP/1.1 503 x\r\n\r\n{"error": {"co', ("cut", "")),
    ],
    ids=["complete", "within an event", "within an error"],
)
async def test_a_connection_that_is_cut_anywhere_is_recorded(answer: bytes, seen: tuple[str, str]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        assert await ask(server.sockets[0].getsockname()[1], 0, 8, Client("", 0)) == seen
