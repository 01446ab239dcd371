"""Clients that do not read their answers, or read them slowly: what waits for them is bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
from starlette.types import Message, Scope

from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.server.admission.auth import ANYONE, Key
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.connections import acceptor, connection
from octavo_engine.server.connections.direct_send import direct_send
from octavo_engine.server.connections.full_response import FullResponse
from octavo_engine.server.connections.sse import EventStream
from octavo_engine.server.generation.answer import _SentEvents
from octavo_engine.server.generation.generation import Generation
from octavo_engine.server.generation.off_the_loop import off_the_loop_if_large, work_of
from octavo_engine.server.generation.sequence import SequenceOutput
from tests.api.hostile import TEXT
from tests.api.served import PATIENCE, Served


def test_an_answer_that_is_not_read_is_dropped_and_counts_until_then(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(acceptor, "_SEND_BUFFER", 4096)
    server, counted, abort = start(), list[int](), connection.ClientConnection.abort

    def counting(of: connection.ClientConnection) -> None:
        counted.append(server.serving.unread.used)
        abort(of)

    monkeypatch.setattr(connection.ClientConnection, "abort", counting)
    body = json.dumps({"tokens": [100] * 400_000}).encode()
    head = (
        f"POST /detokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(head.encode() + body)
        server.wait_until(lambda: counted and server.serving.unread.used == 0)
    assert counted[0] > 100_000


def test_of_64_streams_the_20_that_are_not_read_end_and_the_others_are_complete(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the 20 is bounded while the others go on, and all of it is given back.

    The limit for a client to read passes once much waits, however fast the server is.
    """
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(acceptor, "_SEND_BUFFER", 4096)
    server, word = (
        start(max_queued_requests=300, max_queued_tokens=10_000, max_kv_commitment=1000.0),
        " internationally",
    )
    server.play(word * 300, step=10)
    most, take = [0], server.serving.unread.take

    def counting(key: Key, size: int) -> None:
        take(key, size)
        most[0] = max(most[0], server.serving.unread.used)

    def end_once_much_waits(of: connection.ClientConnection) -> None:
        if most[0] > 100_000:
            end(of)
        else:
            of._stall = of.loop.call_later(0.1, of._end_unread)

    end = connection.ClientConnection._end_unread
    monkeypatch.setattr(connection.ClientConnection, "_end_unread", end_once_much_waits)
    monkeypatch.setattr(server.serving.unread, "take", counting)

    def ask(client: socket.socket, n: int) -> None:
        body = json.dumps({"prompt": "x", "max_tokens": 300, "stream": True, "n": n})
        head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())

    def read(client: socket.socket) -> bytes:
        with contextlib.suppress(ConnectionResetError), client.makefile("rb") as answer:
            return answer.read()
        return b""

    def answer_of_a_reader(_: int) -> str:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
            ask(client, 1)
            return read(client).decode()

    with contextlib.ExitStack() as opened, ThreadPoolExecutor(44) as pool:
        silent = [opened.enter_context(socket.socket()) for _ in range(20)]
        for client in silent:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            ask(client, 8)
        answers = list(pool.map(answer_of_a_reader, range(44)))
        server.wait_until(lambda: len(server.engine.requests) == 44 + 20 * 8)
        server.wait_until(lambda: not server.serving.running and server.serving.unread.used == 0)
        assert all(b"[DONE]" not in read(client) for client in silent)
    assert {"".join(re.findall(r'"text":"([^"]*)"', answer)) for answer in answers} == {word * 300}
    assert all(answer.count("data: [DONE]") == 1 for answer in answers)
    assert most[0] > 100_000


async def test_a_client_that_reads_a_little_now_and_then_has_no_more_time_than_its_request() -> None:
    """The deadline has passed long ago, so that no test depends on when it is noticed."""

    async def never_taken(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def connected() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"

    unread = BytesInUse(1000, "unread_answers", "answers", lambda: False)
    late = time.monotonic() - 3600
    for response in (FullResponse(b"x" * 900, unread, late), EventStream(events(), contextlib.nullcontext(), late)):
        client = Mock(spec=connection.ClientConnection)
        scope: Scope = {"type": "http", "state": {"connection": weakref.ref(client)}}
        with direct_send(scope, never_taken):
            await response(scope, connected, never_taken)
        client.abort.assert_called_once_with()
    assert unread.used == 0


async def test_outputs_that_wait_for_a_reader_take_room_and_those_of_a_reader_that_reads_are_never_refused() -> None:
    unread = BytesInUse(100_000, "unread_answers", "answers", lambda: False)
    big = RequestOutput("a", tuple(range(1500)))  # about 60 kB
    reading, idle = OutputStream(["a"], unread.hold(ANYONE)), OutputStream(["a"], unread.hold(ANYONE))
    for _ in range(2):
        idle.put(big)
        reading.put(big)
        assert (await anext(reading)).token_ids == big.token_ids
    assert unread.used > 50_000
    idle.put(big)
    reading.put(big)
    assert (await anext(reading)).token_ids == big.token_ids
    with pytest.raises(RefusedError, match="answers"):
        await anext(idle)
    assert unread.used == 0
    idle.put(big)
    closed = OutputStream(["a"], unread.hold(ANYONE))
    for _ in range(2):
        closed.put(big)
    closed.close()
    assert unread.used == 0


async def test_outputs_that_a_reader_keeps_take_room() -> None:
    unread = BytesInUse(100_000, "unread_answers", "answers", lambda: False)
    outputs = OutputStream(["a"], unread.hold(ANYONE))
    for size in (60_000, 60_000, -60_000, 60_000):
        outputs.keep(size)
    assert unread.used > 50_000
    with pytest.raises(RefusedError, match="answers"):
        outputs.keep(60_000)
    outputs.close()
    assert unread.used == 0


def test_log_probabilities_that_no_client_has_yet_are_bounded(start: Callable[..., Served]) -> None:
    """Those of an answer that is not streamed, and, in a stream, those of special tokens, which have no text."""
    server, special = start(), 1
    server.serving.unread.total = 150_000
    asked = {"prompt": "x", "max_tokens": 300, "n": 2, "logprobs": 3}
    server.play(" word" * 300)
    assert server.http.post(TEXT, json={**asked, "stream": True}).text.count("data: [DONE]") == 1
    refused = server.http.post(TEXT, json=asked)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "answer_too_large"  # never repeated
    server.do(lambda: setattr(server.engine.script, "tokens", [special] * 300))
    refused = server.http.post(TEXT, json={**asked, "stream": True})
    assert "event: error" in refused.text and "[DONE]" not in refused.text and "answer_too_large" in refused.text
    server.wait_until(lambda: not server.serving.running and server.serving.unread.used == 0)
    fits = {**asked, "max_tokens": 100}
    assert server.http.post(TEXT, json=fits).status_code == 200
    server.do(lambda: server.serving.unread.take(ANYONE, 130_000))  # by another request
    refused = server.http.post(TEXT, json=fits)
    assert refused.status_code == 503 and "answers" in refused.json()["error"]["message"]


def test_large_events_that_are_not_read_count(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first events and the last of /v1/responses repeat 8 MB of tools: those of eight streams took 256 MiB."""
    monkeypatch.setattr(acceptor, "_SEND_BUFFER", 4096)
    server = start()
    server.play("Hello")
    tool = {"type": "function", "description": "x" * 60_000, "parameters": {"type": "object"}}
    tools = [{**tool, "name": f"f{number}"} for number in range(20)]
    body = json.dumps({"input": "x", "tools": tools, "tool_choice": "none", "stream": True})
    head = "POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        server.wait_until(lambda: server.serving.unread.used > 1_200_000)
        client.settimeout(PATIENCE)
        answer = b"".join(iter(lambda: client.recv(1 << 20), b""))
    assert answer.count(b"x" * 60_000) == 60 and b"response.completed" in answer
    server.wait_until(lambda: server.serving.unread.used == 0)
    server.serving.unread.total = 1_000_000
    refused = server.http.post("/v1/responses", content=body, headers={"Content-Type": "application/json"}).text
    assert refused.startswith("event: error") and "answer_too_large" in refused


def test_a_large_event_counts_until_the_one_after_it_has_been_sent() -> None:
    used: list[int] = []
    generation = Mock(count=lambda size: used.append(sum(used[-1:]) + size))
    sent, large = _SentEvents(generation), 100_000
    for size in (large, 10, 10, large, 2 * large, 10, 10):
        assert len(sent.counted(b"x" * size)) == size
    assert used == [large, 0, large, 3 * large, 2 * large, 0]  # whenever it changes


def test_log_probabilities_that_the_end_of_a_response_repeats_are_bounded(start: Callable[..., Served]) -> None:
    """The last events of a stream of /v1/responses repeat them: those of 40 streams counted nowhere."""
    server = start()
    server.play(" word" * 300)
    asked = {"input": "x", "stream": True, "top_logprobs": 10, "max_output_tokens": 300}
    served = server.http.post("/v1/responses", json=asked).text
    assert "event: response.incomplete" in served
    server.serving.unread.total = 60_000
    refused = server.http.post("/v1/responses", json=asked).text
    assert "event: error" in refused and "answer_too_large" in refused and "event: response.incomplete" not in refused
    assert "event: response.incomplete" in server.http.post("/v1/responses", json={**asked, "top_logprobs": 0}).text
    server.wait_until(lambda: not server.serving.running and server.serving.unread.used == 0)


@pytest.mark.parametrize("kept", [0, 60_000])
async def test_a_stream_whose_client_does_not_read_it_may_be_asked_for_again(kept: int) -> None:
    """Although it alone has exceeded the limit, even if a part cannot be shown yet: others would read it in time."""
    server = Mock(unread=BytesInUse(100_000, "unread_answers", "answers", lambda: False))
    asked = Mock(requests=(Mock(request_id="a"),), text=Mock(stop=()))
    generation = Generation(server, Mock(), asked, Mock(key=ANYONE), "")
    generation._keep(kept)
    for _ in range(3):
        generation._outputs.put(RequestOutput("a", tuple(range(1500))))
    with pytest.raises(RefusedError):
        await anext(generation)


async def test_large_answers_are_written_in_a_thread() -> None:
    here = threading.get_ident()
    logprobs = (TokenLogprobs(1, -1.0, 1, ((1, -1.0),) * 20),)
    assert await off_the_loop_if_large(work_of(SequenceOutput(0, "short", logprobs)), threading.get_ident) == here
    for large in (
        SequenceOutput(0, "long" * 50_000),
        SequenceOutput(0, "", logprobs * 200),
        SequenceOutput(0, "", prompt_logprobs=logprobs * 200),
    ):
        assert await off_the_loop_if_large(work_of(large), threading.get_ident) != here
