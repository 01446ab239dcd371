"""Connections of clients that disconnect, wait, or do not read."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import random
import socket
import struct
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.types import Message, Scope

from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.errors import EngineDeadError
from octavo_engine.server.connections import sse
from octavo_engine.server.connections.direct_send import direct_send
from octavo_engine.server.errors import shutting_down
from octavo_engine.server.generation import answer as answer_module
from octavo_engine.server.generation.answer import usage_of
from tests.api.served import Served

ASK = {"messages": [{"role": "user", "content": "Hi"}]}


def raw_post(body: bytes) -> bytes:
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


def test_headers_of_a_stream(server: Served) -> None:
    answer = server.http.post("/v1/chat/completions", json={**ASK, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("options", "least", "most"), [({}, 0, 1), ({"continuous_usage_stats": True}, 4, 9)])
def test_usage_is_counted_where_a_chunk_shows_it(
    server: Served, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], least: int, most: int
) -> None:
    counted = []
    monkeypatch.setattr(answer_module, "usage_of", lambda generation: counted.append(1) or usage_of(generation))
    server.play("one two three")
    asked = {**ASK, "stream": True, "stream_options": {"include_usage": True, **options}}
    assert server.http.post("/v1/chat/completions", json=asked).text.count('"content":') > 3
    assert least <= len(counted) <= most


def test_leaving_a_stream_aborts_it(server: Served) -> None:
    server.play("one two three", hold_after=2)
    stream = server.openai().chat.completions.create(model="smollm2", messages=ASK["messages"], stream=True, n=2)  # type: ignore[arg-type]
    next(iter(stream))
    assert server.http.get("/load").json() == {"server_load": 1}
    stream.close()
    server.wait_until(lambda: len(server.engine.aborted) == 2)
    server.wait_until(lambda: server.http.get("/load").json() == {"server_load": 0})
    admission = server.serving.admission
    assert (admission.total.requests.used, admission.total.kv.used, admission.begun) == (0, 0, 0)


@pytest.mark.parametrize("hold_after", [0, 2])
def test_leaving_before_a_whole_answer_aborts_it(server: Served, hold_after: int) -> None:
    server.play("one two three", hold_after=hold_after)
    body = b'{"prompt": "x", "max_tokens": 10}'
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(raw_post(body))
        server.wait_until(lambda: server.engine.requests)
    server.wait_until(lambda: server.engine.aborted == [server.engine.requests[0].request_id])
    server.wait_until(lambda: len(server.serving.running) == 0)


def test_a_finished_answer_is_not_aborted(server: Served) -> None:
    server.http.post("/v1/completions", json={"prompt": "x"})
    assert server.engine.aborted == []


def test_comments_while_nothing_comes(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_INTERVAL", 0.05)
    server = start()
    server.play("one two", hold_after=1)
    with server.http.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        lines = answer.iter_lines()
        assert ": ping" in lines
        server.do(server.engine.release.set)
        assert "data: [DONE]" in lines


def test_the_sdk_skips_comments(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_INTERVAL", 0.02)
    server = start()
    server.play("one two three", gap=0.1)
    stream = server.openai().chat.completions.create(model="smollm2", messages=ASK["messages"], stream=True)  # type: ignore[arg-type]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "one two three"


def test_a_client_that_does_not_read_is_dropped(start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "STALL_TIMEOUT", 0.3)
    server = start()
    server.play(tokens=server.tokenizer.encode(" word" * 450))
    others = server.openai()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        body = b'{"prompt": "x", "max_tokens": 450, "stream": true, "n": 8, "logprobs": 20}'
        connection.sendall(raw_post(body))
        server.wait_until(lambda: len(server.engine.requests) == 8)
        assert others.completions.create(model="smollm2", prompt="x", max_tokens=3).choices[0].text == " word word word"
        server.wait_until(lambda: len(server.serving.running) == 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_body_limit_while_streaming_and_by_its_length(start: Callable[..., Served]) -> None:
    server = start(max_request_bytes=2000)

    def chunks() -> Any:
        yield b'{"prompt": "'
        for _ in range(100):
            yield b"x" * 100
        yield b'"}'

    for content in (b"x" * 2001, chunks()):
        answer = server.http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert server.http.post("/v1/completions", json={"prompt": "x" * 1900}).status_code == 200


def test_a_client_that_is_still_sending_reads_that_its_body_is_too_large(start: Callable[..., Served]) -> None:
    server = start(max_request_bytes=2000)
    lines = "POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json", "Transfer-Encoding: chunked"
    head = "\r\n".join((*lines, "", "")).encode()
    piece = b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(head + 3 * piece)
        for last in (piece, piece + b"0\r\n\r\n"):  # by now the server knows that it is too large
            time.sleep(0.2)
            connection.sendall(last)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in answer


def test_a_client_that_writes_all_before_it_reads_learns_that_its_body_is_too_large(server: Served) -> None:
    """Bytes that the server does not read would reset the connection, and the answer would be lost."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/completions", b" " * (24 << 20), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.load(answer)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize("header", ["X-Big: " + "x" * 40_000, "\r\n".join(f"X-{i}: y" for i in range(101))])
def test_too_many_headers_are_refused(server: Served, header: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(f"GET /version HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        answer = connection.recv(65536)
    assert answer.split(b" ", 2)[1] in (b"431", b"400")  # 400: from the parser, when the headers came in pieces


def test_a_query_of_very_many_fields_is_refused(server: Served) -> None:
    """It is parsed on the event loop: 14,000 fields in each list of files made others wait for half a second."""
    answer = server.http.get(f"/v1/models?{'a&' * 4097}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (414, "query_too_long")
    assert answer.headers["Connection"] == "close"  # else requests that take no turn could come without a pause
    assert server.http.get(f"/v1/models?{'a&' * 4096}").status_code == 200


def test_headers_without_end_are_cut_off(server: Served) -> None:
    sent = 0
    with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Big: ")
        with pytest.raises(ConnectionError):
            while sent < 64 << 20:
                connection.sendall(b"x" * 65_536)
                sent += 65_536
    assert server.http.get("/version").status_code == 200


async def test_an_error_overtakes_what_a_slow_reader_has_not_read_except_the_engines_death() -> None:
    for error, read in ((shutting_down(), 0), (EngineDeadError("killed"), 3)):
        outputs = OutputStream(["a"])
        for token in range(3):
            outputs.put(RequestOutput("a", (token,)))
        outputs.fail(error)
        for _ in range(read):
            await anext(outputs)
        with pytest.raises(type(error)):
            await anext(outputs)


async def test_events_are_sent_past_the_functions_that_look_only_at_an_answers_start() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"

    started: list[str] = []
    sent: list[bytes] = []

    async def send(message: Message) -> None:
        started.append(message["type"])

    async def send_body(message: Message) -> None:
        sent.append(message["body"])

    async def connected() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    response = sse.EventStream(events(), contextlib.nullcontext(), time.monotonic() + 60)
    scope: Scope = {"type": "http", "state": {}}
    with direct_send(scope, send_body):
        await response(scope, connected, send)
    assert started == ["http.response.start"] and sent == [b"data: {}\n\n", b""]


async def test_a_stream_without_the_layer_that_sends_its_events_fails_before_it_begins() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: {}\n\n"

    async def connected() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    response = sse.EventStream(events(), contextlib.nullcontext(), time.monotonic() + 60)
    with pytest.raises(RuntimeError, match="has not come through RequestContext"):
        await response({"type": "http", "state": {}}, connected, send)


async def test_outputs_may_come_together_and_after_their_reader_has_gone() -> None:
    outputs = OutputStream(["a"])
    first, second, third = (RequestOutput("a", (token,)) for token in range(3))
    reading = asyncio.create_task(anext(outputs))  # type: ignore[arg-type]
    await asyncio.sleep(0)  # the reader waits
    outputs.put(first)
    outputs.put(second)  # before the reader has run
    assert await reading is first and await anext(outputs) is second
    reading = asyncio.create_task(anext(outputs))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    reading.cancel()
    outputs.put(third)
    await asyncio.wait([reading])
    assert reading.cancelled() and await anext(outputs) is third


def random_text(draws: random.Random) -> str:
    """Letters, accents, scripts of two to four bytes, and emoji of several characters, most of them cut by tokens."""
    pieces = [
        "a",
        "Ä",
        "é",
        "߷",
        "क्ष",
        "漢",
        "한",
        "🙂",
        "👩‍👩‍👧",
        "🏳️‍🌈",
        "\U0001f9ff",
        " ",
        "\n",
        "ß",
        "e\u0301",
        "𝄞",
        "שלום",
    ]
    return "".join(draws.choices(pieces, k=draws.randint(1, 12))) + chr(draws.randint(0x20000, 0x2A6DF))


@pytest.mark.parametrize("step", [1, 3])
def test_a_thousand_streams_of_cut_characters_have_no_replacement_and_equal_the_text(server: Served, step: int) -> None:
    """Each character comes in several tokens, each prompt in an answer of its own; 2,000 streams in both cases."""
    server.play(step=step, repeats_prompt=True)
    draws = random.Random(step)
    cut = 0
    for _ in range(4):
        prompts = [server.tokenizer.decode(server.tokenizer.encode(random_text(draws))) for _ in range(250)]
        cut += sum(len(server.tokenizer.encode(prompt)) > len(prompt) for prompt in prompts)
        asked: dict[str, Any] = {"prompt": prompts, "max_tokens": 200, "stop": ["never said"]}
        streamed = dict.fromkeys(range(250), "")
        # Read without the SDK, which takes longer for a chunk than the server.
        *events, end, rest = server.http.post("/v1/completions", json={**asked, "stream": True}).content.split(b"\n\n")
        assert (end, rest) == (b"data: [DONE]", b"")
        for event in events:
            (choice,) = json.loads(event.removeprefix(b"data: "))["choices"]
            streamed[choice["index"]] += choice["text"]
            assert "\ufffd" not in choice["text"]
        assert list(streamed.values()) == prompts
        whole = server.http.post("/v1/completions", json=asked).json()
        assert [choice["text"] for choice in whole["choices"]] == prompts
    assert cut > 500, "texts with more tokens than characters"


def test_two_hundred_clients_that_leave_at_a_random_byte_leave_nothing_behind(server: Served) -> None:
    """Each is aborted, unless it had all of its answer; no request, block or place in the queue stays taken.

    Every second answer, to the longer prompts, never ends by itself, however late its client leaves.
    """
    server.play(" word" * 60, hold_after=40, hold_prompts_over=1)
    draws = random.Random(7)
    for number in range(200):
        text, stream = b"x" if number % 4 < 2 else b"x y", b"true" if number % 4 else b"false"
        request = raw_post(b'{"prompt": ["%s", "z"], "n": 2, "max_tokens": 50, "stream": %s}' % (text, stream))
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as connection:
            if number % 8 == 1:  # in the middle of what it sends
                connection.sendall(request[: draws.randrange(1, len(request))])
                continue
            connection.sendall(request)
            left = draws.randrange(0, 6000)
            while left > 0 and (data := connection.recv(left)):
                left -= len(data)
                if data.endswith(b"0\r\n\r\n") or number % 4 == 0:
                    break
            if number % 2:  # a reset instead of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.wait_until(lambda: len(server.serving.running) == 0 and not server.engine._streams)
    admission = server.serving.admission
    assert (admission.total.requests.used, admission.total.kv.used, admission.begun) == (0, 0, 0)
    assert len(server.engine.aborted) == len(set(server.engine.aborted)) > 100
    assert server.openai().completions.create(model="smollm2", prompt="x", max_tokens=2).choices[0].text == " word word"
