"""Clients that send expensive or oversized input, or none: they harm no other client, and each is answered or
disconnected."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import http.client
import json
import logging
import os
import queue
import re
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import weakref
from asyncio import selector_events
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from h11 import LocalProtocolError
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from starlette.types import Message

from octavo_engine import logs
from octavo_engine.core.request import TokenLogprobs
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.errors import EngineDeadError
from octavo_engine.logs import JSONLines
from octavo_engine.server import serving, text_worker
from octavo_engine.server.admission.auth import ANYONE, Key, KeyRing
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.admission.fair_turns import FairTurns
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.connections import acceptor, client_flow, connection, unread_input
from octavo_engine.server.connections.client_flow import ClientFlow
from octavo_engine.server.connections.connection import ClientConnection
from octavo_engine.server.connections.full_response import FullResponse
from octavo_engine.server.connections.spare_connection import spare_connections
from octavo_engine.server.connections.sse import EventStream
from octavo_engine.server.connections.strict_http import StrictBuffer
from octavo_engine.server.connections.waiting_connections import WaitingConnections
from octavo_engine.server.console.repeated_warnings import RepeatedWarnings, limit_warnings_of_clients
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.generation import Generation
from octavo_engine.server.generation.off_the_loop import off_the_loop_if_large, work_of
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.middleware.authentication import BEGUN_AT_ONCE, Turns
from octavo_engine.server.openai.batches.storage import MAX_ALL_TRANSFERS, StorageError, on_disk
from octavo_engine.server.preparation import text_pool
from octavo_engine.server.preparation.prepared import JSONAnswer, Setup, encode
from octavo_engine.server.telemetry.access_log import AccessLog
from octavo_engine.server.telemetry.trace_context import trace_context
from tests.api import odd_worker
from tests.api.kept_worker import KeptWorker
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served, write_keys

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}


def raw(server: Served, data: bytes) -> bytes:
    """All that the server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(data)
        try:
            return b"".join(iter(lambda: client.recv(65536), b""))
        except ConnectionResetError:
            return b""


def keys(folder: Path, **limits: int) -> Path:
    path = folder / "keys.yaml"
    small = ", ".join(f"{name}: {value}" for name, value in limits.items())
    path.write_text(f"keys:\n- {{name: small, key: sk-small, {small}}}\n- {{name: other, key: sk-other}}\n")
    return path


def as_key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer sk-{name}"}


# Preparing prompts.


def test_a_task_that_takes_too_long_or_too_much_ends_in_an_error_and_harms_no_other(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPU time and memory are the kernel's to limit; a worker that waits is ended by the clock."""
    server = start(program=odd_worker.PROGRAM)
    server.play("Hello")
    for prompt, status, code, seconds in (
        ("take memory", 400, "request_too_complex", PATIENCE),
        ("compute", 400, "preparation_timeout", PATIENCE),
        (f"wait {tmp_path}", 503, "preparation_interrupted", 0.5),  # it may be the server's fault, not the request's
    ):
        monkeypatch.setattr(text_pool, "WALL_SECONDS", seconds)
        answer = server.http.post(TEXT, json={"prompt": prompt})
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)
        assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello"


def test_a_worker_returns_the_memory_of_a_large_task(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all workers together keep as much as each of them has ever needed."""
    monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)
    KeptWorker.end_all()  # new workers have no free memory from earlier tests
    server = start()
    workers = [psutil.Process(worker._process.pid) for worker in server.serving.text._workers]
    before = [worker.memory_info().rss for worker in workers]
    assert server.http.post("/detokenize", json={"tokens": [100] * 900_000}).status_code == 200
    most = [rss + (48 << 20) for rss in before]
    server.wait_until(lambda: all(each.memory_info().rss < limit for each, limit in zip(workers, most, strict=True)))
    status = [Path(f"/proc/{each.pid}/status").read_text() for each in workers]
    peaks = [int(text.partition("VmHWM:")[2].split()[0]) << 10 for text in status]
    assert any(peak > limit for peak, limit in zip(peaks, most, strict=True))


def test_a_worker_does_not_try_again_to_return_memory_that_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each short task after it would pay for a malloc_trim."""
    used, trims = [0], [0]

    def trim() -> None:
        trims[0] += 1
        used[0] -= 10 << 20

    monkeypatch.setattr(text_worker, "_memory", lambda: (0, used[0]))
    monkeypatch.setattr(text_worker, "return_freed_memory", trim)
    resident = 0
    for size, expected in ((20, 0), (100, 1), (0, 1), (20, 1), (40, 2)):
        used[0] += size << 20
        resident = text_worker.limit_kept_memory(resident)
        assert trims[0] == expected
    assert resident == used[0]


def test_a_worker_that_is_killed_from_outside_is_no_fault_of_the_request(start: Callable[..., Served]) -> None:
    """The kernel kills workers when the container's memory is used up. A new worker prepares the request, once: after
    two deaths clients may repeat it, and SDKs do."""
    server = start(program=odd_worker.PROGRAM)
    server.play("Hello")
    for worker in server.serving.text._workers:
        os.kill(worker._process.pid, signal.SIGKILL)
    assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello"
    for name in ("SIGKILL", "SIGHUP"):
        answer = server.http.post(TEXT, json={"prompt": f"be killed by {name}"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "preparation_interrupted")
        assert int(answer.headers["retry-after"]) > 0
    assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello"


SLOW_TO_END = """
import os, sys, time
os.read(0, 1 << 16), os.write(0, bytes(4)), os.read(0, 1 << 16), os.close(0)
time.sleep(0.2)
sys.exit(1)
"""


def test_signals_that_let_a_server_drain_do_not_end_its_workers(start: Callable[..., Served]) -> None:
    """Ctrl-C, or a signal to all processes of a unit: requests that have been accepted are still to be prepared."""
    server = start(program=odd_worker.PROGRAM)
    server.play("Hello")
    pids = {worker._process.pid for worker in server.serving.text._workers}
    for pid in pids:
        assert os.getsid(pid) == pid  # the terminal's signals do not come
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    for _ in range(len(pids) + 1):
        assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello"
    assert {worker._process.pid for worker in server.serving.text._workers} == pids


def test_what_accepted_requests_take_is_bounded_with_a_copy_of_the_parameters_for_each_answer(
    start: Callable[..., Served],
) -> None:
    """48,000 allowed tokens for 256 answers were 600 MB in the engine, and a list of such requests waited."""
    server = start()
    server.play("Hello", hold_after=0)
    body: dict[str, Any] = {"prompt": "x", "max_tokens": 4, "allowed_token_ids": list(range(1000, 49_000))}
    answer = server.http.post(TEXT, json={**body, "n": 64})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_too_complex")
    assert "parameters of its 64 answers" in answer.json()["error"]["message"]
    server.serving.accepted.total = 7_000_000
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.http.post, TEXT, json={**body, "n": 2})
        server.wait_until(lambda: len(server.engine.requests) == 2)
        assert 5_500_000 < server.serving.accepted.used < 5_700_000  # as Python objects in both processes
        refused = server.http.post(TEXT, json={**body, "n": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        assert "bytes of accepted requests are in use" in refused.json()["error"]["message"]
        server.do(server.engine.release.set)
        assert waiting.result().status_code == 200
    assert server.serving.accepted.used == 0


def test_a_grammar_that_is_nested_too_deep_is_refused_whatever_the_limit_of_the_stack_is(
    start: Callable[..., Served],
) -> None:
    """Otherwise it would be compiled in the engine, whose end is everyone's."""
    worker = f"ulimit -s $(ulimit -Hs); exec {sys.executable} -m octavo_engine.server.text_worker"
    server = start(program=("sh", "-c", worker))
    rules = "\n".join(f'r{number}: r{number + 1} "a"' for number in range(9000))
    body = {"prompt": "x", "guided_grammar": f'start: r0\n{rules}\nr9000: "x"'}
    workers = {worker._process.pid for worker in server.serving.text._workers}
    answer = server.http.post(TEXT, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_grammar")
    assert server.http.post(TEXT, json={"prompt": "x"}).status_code == 200
    assert workers == {worker._process.pid for worker in server.serving.text._workers}  # only a child of one ended


class _SlowWorker:
    """A worker whose tasks end when the test lets them; it notes the keys of those that it has begun."""

    def __init__(self, going_on: asyncio.Event) -> None:
        self._going_on = going_on
        self.begun = list[int]()

    async def run(self, task: bytes) -> bytes:
        self.begun.append(len(task))
        await self._going_on.wait()
        return encode(JSONAnswer(b"{}", None))


@pytest.mark.parametrize(
    "body",
    [
        b"x" * (1 << 20),
        b'{"guided_regex": "' + b"x" * 20_000 + b'"}',
        b'{"response_form\\u0061t" : {"x": "' + b"x" * 20_000 + b'"}}',
        b'{"input": "", "text": {"format" : {"schema": "' + b"x" * 20_000 + b'"}}}',
    ],
    ids=["large", "grammar", "escaped name", "responses"],
)
async def test_long_tasks_of_many_keys_leave_a_worker_to_short_ones(body: bytes) -> None:
    """Eight keys with bodies of 8 MB made another key wait for 2.7 s, and took the memory of both workers. Eight with a
    regular expression of 54 KB, which took 3 s to check, made it wait for 14 s."""
    pool, going_on = text_pool.TextPool(lambda: True, workers=2), asyncio.Event()
    workers = [_SlowWorker(going_on) for _ in range(2)]
    for worker in workers:
        pool._turns.add(worker)  # type: ignore[arg-type]
    large = [asyncio.create_task(pool.prepare(f"rude {n}", "chat", READY, body)) for n in range(4)]
    await asyncio.sleep(0)
    leaving = asyncio.create_task(pool.prepare("leaves", "chat", READY, body))
    for _ in range(10):
        await asyncio.sleep(0)
    leaving.cancel()
    words = b'{"prompt": "Which \\"tools\\": a format, caf\\u00e9 \\u003c?"}'
    short = asyncio.create_task(pool.prepare("other", "chat", READY, words))
    for _ in range(10):
        await asyncio.sleep(0)
    sizes = sorted(size for worker in workers for size in worker.begun)
    assert len(sizes) == 2 and sizes[0] < 10_000 < sizes[1]
    going_on.set()
    await asyncio.gather(short, *large)
    assert sorted(len(worker.begun) for worker in workers) != [0, 5] and sum(len(each.begun) for each in workers) == 5


async def test_a_key_with_very_many_small_requests_leaves_room_for_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """600 small requests of one key at once made all other keys' requests be refused."""
    monkeypatch.setattr(text_pool, "_MAX_PENDING", 16)
    pool, going_on = text_pool.TextPool(lambda: True, workers=2), asyncio.Event()
    for _ in range(2):
        pool._turns.add(_SlowWorker(going_on))  # type: ignore[arg-type]
    begun = [asyncio.create_task(pool.prepare("rude", "chat", READY, b"{}")) for _ in range(6)]
    begun.append(asyncio.create_task(pool.prepare("other", "chat", READY, b"{}")))
    await asyncio.sleep(0)
    going_on.set()
    found = await asyncio.gather(*begun, return_exceptions=True)
    assert [getattr(each, "status", 200) for each in found] == [200] * 4 + [429] * 2 + [200]
    assert not pool._pending_of
    monkeypatch.setattr(text_pool, "RESERVED_PARTS", 8)
    pool._pending.take(16)  # of other keys
    pool._check_room("honest")
    pool._pending_of["honest"] = 2
    with pytest.raises(RefusedError, match="16 prompts wait"):
        pool._check_room("honest")


async def test_a_worker_that_ends_by_itself_was_not_killed_from_outside() -> None:
    """After a MemoryError, for example, the socket is closed some time before the interpreter has ended."""
    pool = text_pool.TextPool(workers=1, program=(sys.executable, "-S", "-c", SLOW_TO_END))
    await pool.start(Setup("x", None, "auto"))
    with pytest.raises(APIError) as caught:
        await pool.prepare("", "chat", None, b"{}")  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.detail.code) == (400, "request_too_complex")
    pool.close()


async def test_a_worker_that_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_pool, "START_SECONDS", 0.1)
    pool = text_pool.TextPool(workers=1, program=(sys.executable, "-S", "-c", "import time; time.sleep(999)"))
    with pytest.raises(EngineDeadError, match=r"did not load its tokenizer within 0\.1 s"):
        await pool.start(Setup("x", None, "auto"))
    assert not pool._workers


async def test_a_task_for_which_there_is_no_memory_costs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, going_on = text_pool.TextPool(workers=1), asyncio.Event()
    pool._turns.add(_SlowWorker(going_on))  # type: ignore[arg-type]
    going_on.set()
    body = b"x" * (1 << 20)
    with monkeypatch.context() as poor, pytest.raises(MemoryError):
        poor.setattr(text_pool, "encode", Mock(side_effect=MemoryError))
        await pool.prepare("", "chat", READY, body)
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await pool.prepare("", "chat", READY, body), JSONAnswer)


def test_a_request_whose_client_has_gone_is_not_prepared(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(program=odd_worker.PROGRAM)
    server.play("Hello")
    body = json.dumps({"prompt": f"wait {tmp_path}"}).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    gone = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    for client in gone:
        client.sendall(head.encode() + body)
    pending = server.serving.text._pending
    begun = tmp_path / "begun"
    server.wait_until(lambda: pending.used == 20 and begun.exists() and begun.read_text() == "xx")
    for client in gone:
        client.close()
    server.wait_until(lambda: pending.used == 0)
    (tmp_path / "go_on").touch()
    assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello"
    assert begun.read_text() == "xx"  # the two that had a worker already


async def test_keys_take_turns_and_none_takes_everything() -> None:
    turns: FairTurns[int] = FairTurns(2, lambda: True)
    order: list[str] = []

    async def use(key: str, name: str) -> None:
        thing = await turns.acquire(key)
        order.append(name)
        await asyncio.sleep(0)
        turns.release(key, thing)

    turns.add(1)
    first = await turns.acquire("a")
    turns.add(2)
    waiting = [asyncio.create_task(use("a", f"a{index}")) for index in range(3)]
    await asyncio.sleep(0)
    assert order == []  # one of two is free, and not for a key that has one
    waiting += [asyncio.create_task(use("b", f"b{index}")) for index in range(3)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert order == ["b0", "b1", "b2"]
    turns.release("a", first)
    await asyncio.gather(*waiting)
    assert order == ["b0", "b1", "b2", "a0", "a1", "a2"]


async def test_a_key_that_used_little_does_not_wait_for_a_long_task_of_each_other_key() -> None:
    """Its short tasks come next, and heavy keys together leave one of two resources to others."""
    now = 0.0
    turns: FairTurns[int] = FairTurns(2, lambda: True, lambda: now)
    turns.add(1)
    turns.add(2)
    held = {key: await turns.acquire(key) for key in ("a", "b")}
    waiting = {key: asyncio.create_task(turns.acquire(key)) for key in ("a", "b", "honest")}
    await asyncio.sleep(0)
    turns.release("a", held["a"], 4.0)
    assert await waiting["honest"] == held["a"]
    turns.release("honest", held["a"], 0.01)
    turns.release("b", held["b"], 5.0)
    assert await waiting["a"] and turns._free and not waiting["b"].done()  # "a" has used less than "b"
    assert await turns.acquire("honest") and not turns._free
    turns.release("honest", 1, 0.01)
    now = 10.0  # half of the use is forgotten, so that "b" is not heavy any more
    turns.release("a", 2, 1.0)
    assert await waiting["b"]


async def test_a_turn_takes_as_many_steps_among_thousands_of_keys_as_among_few() -> None:
    """Steps are counted by looks at keys in tables: a walk through the keys has one look at each, or more."""
    looks = 0

    class Name(str):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    async def looks_of_turns(count: int) -> int:
        turns: FairTurns[int] = FairTurns(1, lambda: False, lambda: 0.0)
        names = [Name(number) for number in range(count)]
        turns.add(1)
        for number, name in enumerate(names):
            turns.release(name, await turns.acquire(name), 1.0 + number % 7)
        await turns.acquire("first")
        waiting = [asyncio.create_task(turns.acquire(name)) for name in names]
        await asyncio.sleep(0)
        looked, last = looks, "first"
        for number in range(7):
            turns.release(last, 1, 100.0)
            last = names[7 * number]  # one of those that have used least, in the order in which they came
            async with asyncio.timeout(PATIENCE):
                assert await waiting[7 * number] == 1
        found = looks - looked
        for task in waiting:
            task.cancel()
        return found

    few, many = await looks_of_turns(60), await looks_of_turns(3000)
    assert many <= few + 20


async def test_requests_that_are_cancelled_take_no_turn_of_their_key() -> None:
    turns: FairTurns[int] = FairTurns(1, lambda: False)
    order: list[str] = []

    async def use(key: str, name: str) -> None:
        thing = await turns.acquire(key)
        order.append(name)
        turns.release(key, thing)

    left = [asyncio.create_task(use("a", f"left {index}")) for index in range(100)]
    stays, other = asyncio.create_task(use("a", "a")), asyncio.create_task(use("b", "b"))
    alone = asyncio.create_task(use("c", "c"))
    await asyncio.sleep(0)
    alone.cancel()
    for task in left[:-1]:
        task.cancel()
    await asyncio.sleep(0)
    assert {key: len(waiting) for key, waiting in turns._waiting.items()} == {"a": 2, "b": 1}
    left[-1].cancel()
    turns.add(1)  # before the task that has just been cancelled runs
    await asyncio.gather(stays, other)
    assert order == ["a", "b"]
    assert not turns._waiting
    assert not turns._held


@pytest.mark.parametrize(
    ("rude", "body"), [(["rude"] * 3, b"bomb"), (["rude 0", "rude 1", "rude 2"], b"bomb" * (1 << 18))]
)
async def test_a_key_whose_request_ended_a_worker_gets_no_other_before_there_is_one_in_its_place(
    monkeypatch: pytest.MonkeyPatch, rude: list[str], body: bytes
) -> None:
    """Requests of one key, or large ones of several, would otherwise end all workers before the first is replaced."""
    starting, loaded = [False], asyncio.Event()

    class Fake:
        def __init__(self, *_: object) -> None:
            self.first = not starting[0]

        async def start(self) -> None:
            if not self.first:
                await loaded.wait()

        async def run(self, task: bytes) -> bytes:
            if b"bomb" in task:
                raise text_pool.WorkerDiedError
            return encode(JSONAnswer(b"{}", None))

        def kill(self) -> int:
            return 1  # it has ended by itself; after a signal from outside the request would be prepared again

        close = end = kill

    monkeypatch.setattr(text_pool, "Worker", Fake)
    pool = text_pool.TextPool(lambda: True, 2)
    await pool.start(Mock())
    starting[0] = True
    ended = [asyncio.create_task(pool.prepare(key, "x", None, body)) for key in rude]  # type: ignore[arg-type]
    await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
    other = asyncio.wait_for(pool.prepare("other", "x", None, b"fine"), PATIENCE)  # type: ignore[arg-type]
    assert isinstance(await other, JSONAnswer)
    assert sum(each.done() for each in ended) == 1
    loaded.set()
    assert [type(each) for each in await asyncio.gather(*ended, return_exceptions=True)] == [APIError] * 3
    pool.close()


def test_a_user_who_says_nothing_is_400(server: Served) -> None:
    for message in ({"role": "user"}, {"role": "user", "content": None}):
        answer = server.http.post(CHAT, json={"messages": [message]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content")


def test_too_many_log_probabilities_a_step_are_400(server: Served) -> None:
    answer = server.http.post(TEXT, json={"prompt": ["x"] * 32, "n": 8, "logprobs": 20})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
    assert "more than 1024" in answer.json()["error"]["message"]


# Counting requests from their headers.


def test_every_route_counts_before_its_body_is_read(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=keys(tmp_path, requestsPerMinute=5))
    for method, path, content in (
        ("POST", "/tokenize", b'{"prompt": "x"}'), ("POST", "/detokenize", b"no JSON"), ("GET", "/v1/models", b""),
        ("POST", "/v1/nonsense", b"{}"), ("POST", CHAT, b"[]"),
    ):  # fmt: skip
        headers = {**as_key("small"), "Content-Type": "application/json"}
        assert server.http.request(method, path, content=content, headers=headers).status_code != 429
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 5000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 429 ")
    assert server.http.get("/v1/models", headers=as_key("other")).status_code == 200


def test_a_body_that_is_still_coming_counts_as_a_request_under_way(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    server = start(api_key_file=keys(tmp_path, maxConcurrentRequests=1))
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 50\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head)
        server.wait_until(lambda: server.serving.uploads.used == 1)
        assert server.http.get("/v1/models", headers=as_key("small")).status_code == 429
    server.wait_until(lambda: server.serving.uploads.used == 0)
    assert server.http.get("/v1/models", headers=as_key("small")).status_code == 200


def test_bodies_have_a_budget_for_each_key_and_for_all(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_MAX_UPLOADS", 40_000)
    server = start(api_key_file=keys(tmp_path))
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-small\r\nContent-Length: 9000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head + b"x" * 8000)
        server.wait_until(lambda: server.serving.uploads.used == 8000)
        body = {"prompt": "x" * 3000}
        refused = server.http.post("/tokenize", json=body, headers=as_key("small"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["connection"] == "close"
        assert server.http.post("/tokenize", json=body, headers=as_key("other")).status_code == 200
    server.wait_until(lambda: server.serving.uploads.used == 0)


def test_a_client_that_writes_all_before_it_reads_learns_that_its_key_sends_too_much(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_MAX_UPLOADS", 1 << 20)
    server = start(api_key_file=keys(tmp_path))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as client:
        client.request("POST", "/tokenize", b" " * (6 << 20), as_key("small"))
        assert client.getresponse().status == 429
    server.wait_until(lambda: server.serving.uploads.used == 0)


def test_bytes_in_use() -> None:
    used = BytesInUse(100, "uploads", "bodies", lambda: True)
    alice, bob = used.hold(Key("alice")), used.hold(Key("bob"))
    alice.add(25)
    with pytest.raises(RefusedError) as caught:
        alice.add(1)
    assert caught.value.status == 429
    for name in "bcd":
        used.hold(Key(name)).add(25)
    with pytest.raises(RefusedError) as caught:
        bob.add(1)
    assert caught.value.status == 503
    alice.release()
    alice.release()
    bob.add(25)
    alone = BytesInUse(100, "uploads", "bodies", lambda: False).hold(ANYONE)
    alone.add(100)


def test_keys_that_use_up_everything_leave_room_for_one_that_asks_little() -> None:
    """Four keys took all of a budget together, each of them its share."""
    used = BytesInUse(1024, "uploads", "bodies", lambda: True)
    for name in "abcd":
        used.hold(Key(name)).add(256)
    honest = used.hold(Key("honest"))
    honest.add(4)
    with pytest.raises(RefusedError, match="1028 bytes of bodies are in use"):
        honest.add(1)
    others = [used.hold(Key(f"key {number}")) for number in range(64)]
    with pytest.raises(RefusedError, match="1280 bytes"):
        for each in others:
            each.add(4)


def test_a_request_without_a_body_is_not_refused_for_what_others_hold() -> None:
    used = BytesInUse(1024, "uploads", "bodies", lambda: True)
    for name in "abcd":
        used.hold(Key(name)).add(256)
    used.hold(Key("honest")).add(4)
    used.hold(Key("a")).add(0)


# Connections.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(acceptor, "HEAD_SECONDS", 0.3)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("data", [b"", b"GET /ver", b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTT"])
def test_a_head_has_to_come_in_time_also_on_a_connection_that_is_kept(
    start: Callable[..., Served], data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if data:  # what is handed over has come already: no pause of this process makes it late
        monkeypatch.setattr(acceptor, "HEAD_SECONDS", PATIENCE)
    answer = raw(start(), data)
    assert answer.count(b"HTTP/1.1 200") == data.count(b"\r\n\r\n")


@pytest.mark.usefixtures("impatient")
def test_a_head_that_comes_byte_by_byte_gets_no_more_time(start: Callable[..., Served]) -> None:
    server = start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client, pytest.raises(OSError):
        client.sendall(b"GET /version HTTP/1.1\r\nX: ")
        while True:
            client.sendall(b"x")
            time.sleep(0.02)


@pytest.mark.parametrize("together", [True, False])
def test_the_rest_of_a_refused_request_takes_no_time_from_the_next_one(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """A proxy sends requests of several clients over one connection: the end of one is no reason to cut the next."""
    for limit in ("HEAD_SECONDS", "_REST_SECONDS"):
        monkeypatch.setattr(connection, limit, 0.2)
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    server.play("one two three", gap=0.2)
    refused = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n".encode()
    body = b'{"prompt": "x", "stream": true}'
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer sk-ann\r\n"
    stream = f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(refused)
        assert client.recv(65536).startswith(b"HTTP/1.1 401")
        if together:
            client.sendall(b"abcde" + stream)
        else:
            client.sendall(b"abcde")
            time.sleep(0.5)  # a connection may idle for longer than a head may take
            client.sendall(stream)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@pytest.mark.parametrize(("hard", "soft", "connections"), [(1 << 20, 8448, 4096), (1024, 1024, 384), (130, 130, 1)])
def test_connections_leave_open_files_for_stored_files_and_probes(
    hard: int, soft: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,096 uploads have 8,192 open files: without files for probes, the pod would be restarted."""
    limits = [(64, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    assert acceptor.possible_connections(4096, MAX_ALL_TRANSFERS) == connections
    assert limits[-1] == (soft, hard)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_connection_takes_no_memory_after_its_end(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """3,000 ended ones took 25 MiB until a garbage collection, and reset ones until their time limit of 620 s."""
    in_memory: weakref.WeakSet[ClientConnection | ClientFlow] = weakref.WeakSet()
    made = ClientConnection.connection_made

    def connection_made(new: ClientConnection, transport: asyncio.Transport) -> None:
        made(new, transport)
        in_memory.update((new, new.flow))  # the latter belongs to requests too

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    head = "GET /v1/models HTTP/1.1\r\nHost: x\r\n"
    complete = (f"{head}Authorization: Bearer sk-ann\r\n\r\n", f"{head}\r\n", "not HTTP\r\n\r\n")
    half = (head, f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-ann\r\nContent-Length: 9\r\n\r\n1")

    gc.disable()
    try:
        for text in complete + half:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
                client.sendall(text.encode())
                server.wait_until(lambda: in_memory)
                if text in complete:
                    assert client.recv(65536)
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.wait_until(lambda: not in_memory)
    finally:
        gc.enable()


def test_a_client_that_resets_while_it_gets_a_400_is_no_error_of_the_server(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[object] = []

    def not_connected(transport: object) -> None:
        ends.append(transport)
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    monkeypatch.setattr(selector_events._SelectorSocketTransport, "write_eof", not_connected)
    for text, status in (("not HTTP\r\n\r\n", b"400"), ("GET /version HTTP/1.1\r\nHost: x\r\n\r\n", b"200")):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
            client.sendall(text.encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 " + status)
    assert len(ends) == 1
    assert "error of the server" not in caplog.text


def test_idle_connections_are_kept_for_longer_than_proxies_keep_theirs(server: Served) -> None:
    """Go's transport, and so Kubernetes' API server, keeps them for 90 s, a load balancer of Google's for 600 s."""
    assert server.server._connections.http.config.timeout_keep_alive > 600


def test_probes_answer_beside_silent_connections_and_the_oldest_of_them_goes(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    server = start(max_connections=16)
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(12)]
    assert silent[0].recv(1) == b""
    assert server.http.get("/health/live").status_code == 200
    assert server.http.get("/version").status_code == 200
    assert "connections were closed that had sent nothing (at most 8" in caplog.text
    for client in silent:
        client.close()


def test_with_too_many_connections_the_one_that_is_idle_for_longest_goes(start: Callable[..., Served]) -> None:
    server = start(max_connections=8)
    kept: list[socket.socket] = []

    def ask(client: socket.socket) -> None:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):  # the body may come after the head
            answer += (part := client.recv(65536))
            assert part, "it was closed"
        assert answer.startswith(b"HTTP/1.1 200")

    for number in range(12):
        kept.append(socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE))
        ask(kept[-1])
        if number >= 7:
            ask(kept[2])  # the oldest but two, and in use
    server.wait_until(lambda: len(server.server._connections.http.server_state.connections) <= 8)
    for number in (0, 1, 3, 4):
        with contextlib.suppress(ConnectionResetError):
            assert kept[number].recv(1) == b""
    for number in (2, *range(5, 12)):
        ask(kept[number])
    for client in kept:
        client.close()


def test_a_connection_whose_first_request_is_not_read_yet_is_not_closed_for_the_next_one() -> None:
    """It looked idle. If all others sent bodies, it was the only one that did, and a new client was cut off."""
    new = Mock(spec=connection.ClientConnection, idle=True, has_been_read=False, scope=None)
    slow = [
        Mock(idle=False, has_been_read=True, scope={"path": "/v1/files"}, idle_since=number, cycle=Mock(more_body=True))
        for number in range(3)
    ]
    assert spare_connections([new, *slow]) == [slow[0]]
    assert spare_connections([new]) == []


def test_a_key_that_uploads_on_all_connections_leaves_room_for_others(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """Bodies that come slowly are not idle; all further connections were closed, of whatever client."""
    server = start(max_connections=8, api_key_file=keys(tmp_path))
    server.play("Hello", hold_after=1)

    def begin(name: str, length: int, body: str = "") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
        head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-{name}\r\nContent-Type: application/json"
        client.sendall(f"{head}\r\nContent-Length: {length}\r\n\r\n{body}".encode())
        return client

    server.http.close()  # its kept connection would be the first to go
    with contextlib.ExitStack() as opened:
        body = json.dumps({"prompt": "x"})
        answered = opened.enter_context(begin("small", len(body), body))
        server.wait_until(lambda: server.engine.requests)
        slow = []
        for number, name in enumerate(["other", *["small"] * 6], 2):
            slow.append(opened.enter_context(begin(name, 1000)))
            server.wait_until(
                lambda number=number: len(server.server._connections.http.server_state.connections) == number
            )
        newcomer = opened.enter_context(begin("other", len(body), body))
        with contextlib.suppress(ConnectionResetError):
            assert slow[1].recv(1) == b""  # the key's oldest; before any answer ends, whose idle connection would go
        server.do(server.engine.release.set)
        for client in (newcomer, answered):
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        slow[0].sendall(json.dumps({"prompt": "z"}).ljust(1000).encode())
        assert slow[0].recv(15) == b"HTTP/1.1 200 OK"


def test_the_loop_gets_connections_at_its_own_pace_and_none_that_were_closed() -> None:
    """Clients that open and close connections as fast as they can cost the server's loop nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    given: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
    accepting = acceptor.Acceptor(acceptor.Listeners(listener), 100, given.put, lambda _: asyncio.Protocol)

    def connect(data: bytes = b"GET /version HTTP/1.1\r\n") -> socket.socket:
        client = socket.create_connection(listener.getsockname())
        client.sendall(data)
        return client

    with contextlib.ExitStack() as opened:
        accepting.start()
        opened.callback(accepting.stop)
        for _ in range(acceptor._HANDED_AT_ONCE):
            opened.enter_context(connect())
            opened.enter_context(given.get(timeout=30))
        waiting = [opened.enter_context(connect()) for _ in range(4)]
        waiting += [opened.enter_context(connect(b"GET /version HTTP/1.1\r\n\r\n"))]
        while len(accepting._waiting) < 5:
            time.sleep(0.01)
        assert given.empty()
        waiting[0].close()
        waiting[1].shutdown(socket.SHUT_WR)
        waiting[4].shutdown(socket.SHUT_WR)  # its request is complete: it waits for the answer
        for _ in range(acceptor._HANDED_AT_ONCE):
            accepting.taken()
        stayed = [opened.enter_context(given.get(timeout=30)) for _ in range(3)]
        assert {each.getpeername() for each in stayed} == {each.getsockname() for each in waiting[2:]}


def test_connections_of_one_key_that_wait_for_the_loop_leave_room_for_those_of_others(tmp_path: Path) -> None:
    """Eight attacks at once had connections of another key reset, or wait for two seconds."""
    ring = KeyRing(write_keys(tmp_path / "keys.yaml", "rude", "other"))
    heads = {
        "rude": b"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-rude\r\n\r\n",
        "other": b"POST / HTTP/1.1\r\nx-api-key:  sk-other \r\n\r\n",
        "": b"POST / HTTP/1.1\r\nAuthorization: Bearer sk-wrong\r\n\r\n",
    }
    waiting, dropped = WaitingConnections(6), []
    for number, name in enumerate(["rude"] * 6 + ["", "other", "rude", "other"]):
        assert ring.name_in(heads[name]) == name
        if (closed := waiting.add(name, Mock(spec=socket.socket, number=number))) is not None:
            dropped.append(closed.number)
    assert dropped == [5, 4, 8, 3]
    assert [each.number for each in waiting] == [0, 1, 2, 6, 7, 9]
    assert [waiting.take().number for _ in range(6)] == [0, 6, 7, 1, 9, 2]
    assert not len(waiting)
    assert ring.name_in(b"POST / HTTP/1.1\r\n") == ""


@pytest.mark.parametrize("event", ["more connections", "no more files", "the end"])
def test_a_connection_that_has_sent_its_request_is_not_closed_as_a_silent_one(event: str) -> None:
    """2,600 connections at once had others reset whose requests had arrived and were not looked at yet."""
    listener = socket.create_server(("127.0.0.1", 0))
    given: list[socket.socket] = []
    accepting = acceptor.Acceptor(acceptor.Listeners(listener), 4, given.append, lambda _: asyncio.Protocol)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.create_connection(listener.getsockname())) for _ in range(3)]

        def accept() -> None:
            connection = opened.enter_context(listener.accept()[0])
            connection.setblocking(False)
            accepting._await_request(connection)

        accept()
        accept()
        clients[0].sendall(b"GET /version HTTP/1.1\r\n\r\n")
        assert select.select([next(iter(accepting._silent))], [], [], PATIENCE)[0]
        if event == "more connections":
            accept()
        elif event == "no more files":
            accepting._log_accept_error(OSError(errno.EMFILE, "Too many open files"))
        if event == "the end":
            listener.setblocking(False)
            accepting._close()
        else:
            accepting._loop.close()
        assert clients[0].getsockname() in [each.getpeername() for each in given]
        assert len(accepting._silent) == {"more connections": 2}.get(event, 0)


def test_a_probe_is_answered_although_as_many_connections_wait_for_the_loop_as_may(
    start: Callable[..., Served],
) -> None:
    """2,600 connections at once had probes reset, since nothing new was accepted beside those that waited."""
    server = start(max_connections=8)
    go_on, clients = threading.Event(), list[socket.socket]()
    server.loop.call_soon_threadsafe(go_on.wait, PATIENCE)
    try:
        accepting = server.server._connections.acceptor
        for number in range(acceptor._HANDED_AT_ONCE + 4):
            clients.append(socket.create_connection(("127.0.0.1", server.port)))
            clients[-1].sendall(b"GET /version HTTP/1.1\r\n")
            server.wait_until(lambda: accepting._handed + len(accepting._waiting) > number)  # noqa: B023
        for _ in range(3):
            assert server.http.get("/health/live").status_code == 200
    finally:
        go_on.set()
        for client in clients:
            client.close()


def test_probes_and_metrics_answer_while_the_loop_is_held_up_but_not_forever(start: Callable[..., Served]) -> None:
    server = start()
    go_on = threading.Event()
    server.loop.call_soon_threadsafe(go_on.wait, PATIENCE)
    try:
        assert server.http.get("/health/live").status_code == 200
        assert server.http.get("/metrics").status_code == 200
        server.engine.watchdog.timeout = 1.0
        server.wait_until(lambda: server.http.get("/health/ready").status_code == 503)
        server.engine.watchdog.timeout = float(PATIENCE)
        assert server.http.get("/health/live").status_code == 200
        server.engine.watchdog.timeout = 1.0
        server.wait_until(lambda: server.http.get("/health/live").status_code == 503)
    finally:
        go_on.set()
    server.wait_until(lambda: server.http.get("/health/ready").status_code == 200)


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
    """What waits for the 20 is bounded while the others go on, and all of it is given back."""
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
        await response({"type": "http", "state": {"connection": weakref.ref(client)}}, connected, never_taken)
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


async def test_few_requests_begin_between_two_looks_at_what_else_there_is_to_do() -> None:
    """However many come at once, streams go on beside them, and each key's requests have their turn."""
    turns, begun = Turns(), list[str]()

    async def begin(name: str) -> None:
        await turns.wait(Key(name))
        begun.append(name)

    rude = [asyncio.create_task(begin("rude")) for _ in range(50)]
    await asyncio.sleep(0)
    most, before = 0, 0
    other = asyncio.create_task(begin("other"))
    while not all(each.done() for each in rude):
        await asyncio.sleep(0)
        most, before = max(most, len(begun) - before), len(begun)
    assert most <= BEGUN_AT_ONCE
    assert begun.index("other") <= 3 * BEGUN_AT_ONCE
    await other


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer sk-wrong"}, as_key("small")])
def test_every_request_waits_for_its_turn(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: dict[str, str]
) -> None:
    waited, wait = list[str](), Turns.wait

    async def noting(turns: Turns, key: Key) -> None:
        waited.append(key.name)
        await wait(turns, key)

    monkeypatch.setattr(Turns, "wait", noting)
    start(api_key_file=keys(tmp_path)).http.get("/version", headers=header)
    assert waited == ["small" if "small" in str(header) else ""]


# HTTP by the letter.

_CHUNKED = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"


@pytest.mark.parametrize("request_", [
    _CHUNKED + "Content-Length: 5\r\n\r\n0\r\n\r\n",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{}",
    "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{}",
    "GET /version HTTP/1.1\r\nHost: x\r\nX-Folded: a\r\n b\r\n\r\n",
    "GET /version HTTP/3.0\r\nHost: x\r\n\r\n",
    "GET /version HTTP/2.0\r\nHost: x\r\n\r\n",
    "GET /version HTTP/0.9\r\nHost: x\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "GET /version HTTP/1.1\nHost: x\n\n",
    "GET /version HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost: x\r\nX: a\rb\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost : x\r\n\r\n",
    f"GET /version?{'x' * 70_000} HTTP/1.1\r\nHost: x\r\n\r\n",
    _CHUNKED + "\r\n11111111111111111\r\n",
    _CHUNKED + "\r\n2\r\n{}X\r\n",
    _CHUNKED + "\r\n\r\n{}\r\n",
    _CHUNKED + "\r\n;a=b\r\n{}\r\n",
    _CHUNKED + "\r\n0x2\r\n{}\r\n",
    _CHUNKED + "\r\n\u00b2\r\n{}\r\n",
    "GET ?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET version HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET http:///version HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET ftp://x/version HTTP/1.1\r\nHost: x\r\n\r\n",
    _CHUNKED + "\r\n" + "1\r\n \r\n" * 1100,
    _CHUNKED + "\r\n2\r\n{}\r\n0\r\nX: a\r\n b\r\n\r\n",
    "GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /version HTTP/1.1\nHost: x\n\n",
])  # fmt: skip
def test_what_proxies_may_read_differently_is_400_and_ends_the_connection(server: Served, request_: str) -> None:
    answer = raw(server, request_.encode())
    last = answer.rpartition(b"HTTP/1.1 ")[2]
    assert last.startswith(b"400 ")
    assert b"invalid_http" in last
    assert b"connection: close" in last.lower()


@pytest.mark.parametrize("end", [b"\0", b"\x0b", b"\x0c"])
def test_what_a_pattern_of_h11_takes_long_to_refuse_is_refused_before(end: bytes) -> None:
    """For 30,000 spaces and a NUL the pattern for headers takes 20 s, in which the event loop does nothing else."""
    for lines, head in ((True, b"GET / HTTP/1.1\r\nX: "), (False, b"1; ")):
        buffer = StrictBuffer()
        buffer += head + b" " * 100 + (end if lines else b"\n") + b"\r\n\r\n"
        with pytest.raises(LocalProtocolError):
            buffer.maybe_extract_lines() if lines else buffer.maybe_extract_next_line()


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://x/version", 200), ("HTTPS://a:b@x:1/version?a=/", 200), ("http://x/nope", 404), ("http://x", 200),
     ("http://x?a=/version", 200), ("http://x//version", 404), ("http://http://x/version", 404)],
)  # fmt: skip
def test_a_target_as_proxies_are_sent_it_is_its_path(server: Served, target: str, status: int) -> None:
    """RFC 9112, 3.2.2: a server has to accept it. The router, the check of keys and the log see the path alone."""
    answer = raw(server, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)


def test_a_target_as_proxies_are_sent_it_opens_nothing(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "a"))
    for target in ("http://x/v1/models", "http://health/live/v1/models", "http://x/health/live/../v1/models"):
        answer = raw(server, f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ")


def test_an_error_of_the_parser_ends_its_connection_and_does_not_fill_the_log(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ValueError("not expected")

    limit_warnings_of_clients()
    monkeypatch.setattr(connection.StrictBuffer, "maybe_extract_lines", broken)
    for _ in range(5):
        with contextlib.suppress(ConnectionResetError):
            assert raw(server, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n") == b""
    monkeypatch.undo()
    assert server.http.get("/version").status_code == 200
    assert caplog.text.count("by an error of the server: ValueError") <= 1
    assert "Traceback" not in caplog.text


def test_a_chunk_extension_without_end_is_400_also_for_a_client_that_writes_on(server: Served) -> None:
    """Bytes that the server had not read reset the connection, and the client lost the answer."""
    assert b"invalid_http" in raw(server, (_CHUNKED + "\r\n1;").encode() + b"e" * 5_000_000)


def test_a_proper_chunked_body_with_trailers_is_read(server: Served) -> None:
    body = b'2\r\n{"\r\n0d\r\nprompt": "x"}\r\n' + b"1\r\n \r\n" * 1000 + b"400\r\n" + b" " * 1024 + b"\r\n"
    body += b"1\r\n \r\n" * 22 + b"0\r\nX-Checksum: 5 HTTP/3.0\r\n\r\n"
    head = (_CHUNKED + "Connection: close\r\n\r\n").encode()
    assert raw(server, head + body).startswith(b"HTTP/1.1 200 ")


# Clients that send nothing more.


def sent_and_half_closed(server: Served, *bodies: dict[str, Any]) -> socket.socket:
    """A client that has sent requests and the end of what it sends."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    for body in map(json.dumps, bodies):
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    client.shutdown(socket.SHUT_WR)
    return client


def test_a_client_that_sends_nothing_more_gets_its_answers(server: Served) -> None:
    server.play("Hello")
    with sent_and_half_closed(server, HI, {**HI, "stream": True, "max_tokens": 3}) as client:
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"[DONE]") == 1
    with sent_and_half_closed(server) as client:
        assert client.recv(1) == b""


def test_a_client_that_closed_its_connection_is_not_answered_forever(server: Served) -> None:
    """It looks like one that only sends nothing more until something is sent to it."""
    server.play("one two three", hold_after=0)
    client = sent_and_half_closed(server, HI)
    server.wait_until(lambda: server.engine.requests)
    assert client.recv(12) == b"HTTP/1.1 100"
    client.close()
    server.wait_until(lambda: len(server.engine.aborted) == 1)


# The log of requests.


def test_requests_that_come_before_the_last_is_answered_wait_with_the_client(server: Served) -> None:
    """A pipeline of 10 MB: all of it is answered, and the server never holds much more of it than one read."""
    body = b'{"prompt": "Hi"}'
    length = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    request = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 16_000 + b"\r\n" + length + body
    count = 600

    def held() -> int:
        connections = server.server._connections.http.server_state.connections
        ours = [each for each in connections if isinstance(each, connection.ClientConnection)]
        return max((len(each.conn._receive_buffer) for each in ours), default=0)

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        sending = threading.Thread(target=client.sendall, args=(request * count,))
        sending.start()
        answers, most = b"", 0
        while answers.count(b"HTTP/1.1 200") < count:
            answers += (part := client.recv(65536))
            assert part
            assert b"HTTP/1.1 4" not in part
            most = max(most, server.do(held))
        sending.join()
    assert 0 < most < 1 << 20


def test_a_client_that_leaves_is_noticed_although_it_has_begun_another_request(server: Served) -> None:
    """Some old clients send a line break behind a body: their answers were computed to the end after they had left."""
    server.play("Hello there.", hold_after=1)
    body = b'{"prompt": "x"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall(head % len(body) + body)
        server.wait_until(lambda: server.engine.requests)
        client.sendall(b"\r\n")
        connections = server.server._connections.http.server_state.connections
        server.wait_until(lambda: any(len(each.conn._receive_buffer) == 2 for each in connections))
    server.wait_until(lambda: len(server.engine.aborted) == 1)


def test_a_client_that_leaves_is_noticed_although_its_further_requests_fill_what_is_read_ahead(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is not read, so that its end is not seen: something has to be sent to it."""
    monkeypatch.setattr(connection, "_UNSEEN_SECONDS", 0.05)
    server.play("Hello there.", hold_after=1)
    body = b'{"prompt": "x"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.sendall((head % len(body) + body) * 800)
        server.wait_until(lambda: server.engine.requests)
        connections = server.server._connections.http.server_state.connections
        server.wait_until(lambda: any(len(each.conn._receive_buffer) > 64 << 10 for each in connections))
        assert client.recv(12) == b"HTTP/1.1 100"
    server.wait_until(lambda: len(server.engine.aborted) == 1)


def test_a_client_is_not_cut_off_because_the_server_did_not_run(server: Served) -> None:
    """A time limit that ends late does not end the connection: what was sent in time may still wait in the socket."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        connections = server.server._connections.http.server_state.connections
        client.sendall(b"GET /version HTTP/1.1\r\n")
        server.wait_until(lambda: any(len(each.conn._receive_buffer) for each in connections))
        [ours] = [each for each in connections if len(each.conn._receive_buffer)]

        def expire_late() -> None:
            ours._expire(ours.loop.time() - 2)
            ours._expect(PATIENCE)

        server.do(expire_late)
        client.sendall(b"Host: x\r\nConnection: close\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_that_arrived_is_answered_although_the_time_of_a_silent_connection_is_over(server: Served) -> None:
    accepting, sent = server.server._connections.acceptor, threading.Event()

    def expire() -> None:
        sent.wait(PATIENCE)
        [timer] = accepting._silent.values()
        timer._callback(*timer._args)  # type: ignore[attr-defined]

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        server.wait_until(lambda: len(accepting._silent) == 1)
        accepting._loop.call_soon_threadsafe(expire)
        client.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        sent.set()
        assert client.recv(12) == b"HTTP/1.1 200"


def test_a_request_in_very_many_small_pieces_is_read_with_pauses(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """3,000 connections that sent single bytes without a pause made another's answer wait for 4.4 s."""
    monkeypatch.setattr(client_flow, "_SMALL_READS", 2)
    monkeypatch.setattr(client_flow, "_PAUSE", 3600)
    server = start()
    body = b'{"prompt": "Hi"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate((head % len(body), body[:1], body[1:2]), 1):
            client.sendall(piece)
            server.wait_until(lambda number=number: any(flow._reads == number for flow in flows(server)))
        [flow] = [each for each in flows(server) if each._reads]
        assert flow.read_paused
        client.sendall(body[2:])
        assert server.http.post("/tokenize", json={"prompt": "Hi"}).status_code == 200
        assert flow.read_paused and flow._reads == 3
        server.do(flow._read_on)
        assert client.recv(12) == b"HTTP/1.1 200"


def flows(server: Served) -> list[client_flow.ClientFlow]:
    """The flow control of each connection."""
    return [each.flow for each in list(server.server._connections.http.server_state.connections)]


@pytest.mark.parametrize("in_body", [True, False])
def test_input_that_no_request_has_read_is_bounded_for_all_connections_together(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, in_body: bool
) -> None:
    """Bodies that arrive before their requests' turn, and requests behind one that is not answered yet."""
    monkeypatch.setattr(unread_input, "MOST_UNREAD", 0)
    monkeypatch.setattr(unread_input, "SMALL", 100)
    server = start()
    unread = server.server._connections._unread_input
    server.play("Hello", hold_after=1)
    asked = json.dumps({"prompt": "x"})
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
        if in_body:
            turn = asyncio.Event()
            monkeypatch.setattr(Turns, "wait", lambda *_: turn.wait())
            client.sendall(f"{head}99999\r\n\r\n".encode() + b"x" * 40_000)
        else:
            client.sendall(f"{head}{len(asked)}\r\n\r\n{asked}".encode())
            server.wait_until(lambda: server.engine.requests)
            assert unread.total == 0
            client.sendall(f"{head}9\r\n".encode() + b"X: " + b"x" * 20_000)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(65536) == b""
    server.wait_until(lambda: unread.total == 0)


def test_warnings_that_clients_cause_are_bounded(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    limit_warnings_of_clients()
    for _ in range(20):
        assert raw(server, b"GET / HTTP/9.9\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert caplog.text.count("Invalid HTTP request") <= 2  # two, should 10 s go by meanwhile


async def test_warnings_about_a_full_disk_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logging.getLogger("octavo.storage"), "filters", [])
    limit_warnings_of_clients()
    for _ in range(20):
        with pytest.raises(StorageError):
            await on_disk(write)
    assert 1 <= caplog.text.count("No space left on device") <= 2  # two, should 10 s go by meanwhile


def test_a_form_that_is_broken_writes_no_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging, "basicConfig", Mock())
    logs.set_up("text")
    with pytest.raises(MultipartParseError):
        MultipartParser(b"b").write(b"no form")
    assert not caplog.messages


def test_warnings_that_repeat_are_counted() -> None:
    now = 0.0
    repeated = RepeatedWarnings(lambda: now)

    def record(level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("x", level, "x", 1, "all %d are in use", (5,), None)

    assert [repeated.filter(record()) for _ in range(100)] == [True] + [False] * 99
    now = 10.0
    again = record()
    assert repeated.filter(again)
    assert again.getMessage() == "all 5 are in use (and 99 times more since the last such line)"
    assert repeated.filter(record(logging.ERROR))


def scope_of(path: str, raw_path: bytes) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "raw_path": raw_path, "client": ("10.0.0.1", 5), "headers": [],
    }  # fmt: skip


def test_the_log_of_requests_is_bounded_and_says_what_it_omits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    now = 0.0
    log = AccessLog(lambda: now)
    for _ in range(10_000):
        log.write(scope_of("/x", b"/x"), 401)
    assert len(caplog.messages) == 500
    now = 1.0
    log.write(scope_of("/x", b"/x"), 401)
    assert caplog.messages[500] == "9500 requests were not logged: too many came at once"
    assert caplog.messages[501] == '10.0.0.1:5 "GET /x" 401'


def test_the_log_of_requests_holds_no_keys_and_no_line_of_a_clients_own(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start()  # of its own: after the floods of other tests lines are omitted
    for path in ("/v1/models?api_key=sk-secret123", "/v1/sk-secret123", "/a%0aERROR%20forged"):
        server.http.get(path, headers={"X-Request-Id": "r"})
    server.http.get("/health/live")
    said = [message.split(" ", 1)[1] for message in caplog.messages if '"' in message]
    assert said == [
        f'"GET {path} request_id=r' for path in ('/v1/models" 200', '/v1/sk-..." 404', '/a%0aERROR%20forged" 404')
    ]


@pytest.mark.parametrize(
    ("path", "method", "request_id"),
    [("/x%20sk-secret123", "GET", "r"), ("/%2fsk-secret123", "GET", "r"), ("/%73k%2Dsecret123", "GET", "r"),
     ("/v1/models", "sk-secret123", "r"), ("/v1/models", "GET", "sk-secret123"),
     ("/" + "x" * 190 + "sk-secret123", "GET", "r"),
     ("/v1/myCompanysSecret", "GET", "myCompanysSecret"), ("/v1/my%43ompanysSecret", "GET", "r")],
)  # fmt: skip
def test_the_log_of_requests_holds_no_key_wherever_a_client_writes_it(
    path: str, method: str, request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    scope = scope_of(path, path.encode()) | {"method": method, "state": {"request_id": request_id}}
    AccessLog().write(scope | {"headers": [(b"authorization", b"Bearer myCompanysSecret")]}, 404)
    [line] = caplog.messages
    assert "ecret" not in line and " 404 request_id=" in line


def test_an_answer_that_is_cut_off_is_logged_as_such(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start()
    server.play("one two", hold_after=1)
    asked = {"prompt": "x", "stream": True}
    with server.http.stream("POST", TEXT, json=asked, headers={"X-Request-Id": "r"}) as answer:
        next(answer.iter_lines())
    server.wait_until(lambda: len(caplog.messages) == 2)
    said = [message.split(" ", 1)[1] for message in caplog.messages]
    assert said == ['"POST /v1/completions" 200 request_id=r', '"POST /v1/completions" 200 cut off request_id=r']
    assert [json.loads(JSONLines().format(record))["cut_off"] for record in caplog.records] == [False, True]


def test_a_line_names_the_request_its_key_and_its_trace(
    start: Callable[..., Served], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"Authorization": "Bearer sk-ann", "X-Request-Id": "mine", "traceparent": f"00-{trace}-{parent}-01"}
    answer = server.http.post("/v1/completions", json={"prompt": "my secret"}, headers=headers)
    version, trace_id, span, flags = answer.headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", trace, "01") and span != parent
    [line] = [record for record in caplog.records if "/v1/completions" in record.getMessage()]
    assert line.getMessage().endswith(f'"POST /v1/completions" 200 request_id=mine key=ann trace_id={trace}')
    fields = json.loads(JSONLines().format(line))
    assert fields | {"method": "POST", "path": "/v1/completions", "status": 200, "request_id": "mine", "key": "ann",
                     "trace_id": trace} == fields  # fmt: skip
    assert "secret" not in str(fields)


@pytest.mark.parametrize(
    ("header", "valid"),
    [(f"00-{'a' * 32}-{'b' * 16}-00", True), (f"01-{'a' * 32}-{'b' * 16}-00-more", True),
     (f"00-{'a' * 32}-{'b' * 16}-00-more", False), (f"ff-{'a' * 32}-{'b' * 16}-00", False),
     (f"00-{'0' * 32}-{'b' * 16}-00", False), (f"00-{'a' * 32}-{'0' * 16}-00", False), ("", False),
     (f"00-{'A' * 32}-{'b' * 16}-00", False), (f"00-{'a' * 32}-{'b' * 16}-00\n", False)],
)  # fmt: skip
def test_only_a_valid_trace_context_is_taken(header: str, valid: bool) -> None:
    assert (trace_context(header) is not None) == valid
