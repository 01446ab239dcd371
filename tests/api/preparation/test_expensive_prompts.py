"""Prompts, grammars and parameters that take long, or much memory, to prepare end alone and harm no other request."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from octavo_engine.errors import EngineDeadError
from octavo_engine.server import text_worker
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.tools import call_grammars
from octavo_engine.server.preparation import checked_grammars, text_pool
from octavo_engine.server.preparation.checked_grammars import CheckedGrammars
from octavo_engine.server.preparation.grammar_budgets import GrammarBudgets
from octavo_engine.server.preparation.prepared import (
    GRAMMAR_NOT_CHECKED,
    JSONAnswer,
    Prepared,
    Rejected,
    Setup,
    Task,
    decode_task,
    encode,
)
from octavo_engine.structured import grammar_check
from octavo_engine.structured.grammar import regex_grammar
from octavo_engine.structured.grammar_check import SlowGrammarError
from octavo_engine.text.tokenizer import Tokenizer
from tests.api import odd_worker
from tests.api.hostile import CHAT, HI, TEXT
from tests.api.kept_worker import KeptWorker
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served


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


def test_a_request_that_is_not_prepared_by_its_deadline_is_told_so(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    """It was answered only when a worker had read it, which among many long prompts may take minutes."""
    server = start(program=odd_worker.PROGRAM)
    for path in (TEXT, "/tokenize"):
        waits = {"prompt": f"wait {tmp_path}"}
        answer = server.http.post(path, json=waits, headers={"X-Request-Timeout": "0.1"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_timeout")
        assert answer.headers["x-should-retry"] == "false" and int(answer.headers["retry-after"]) > 0
    assert not server.engine.requests and not server.serving.uploads.used
    (tmp_path / "go_on").touch()


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


def test_a_worker_that_is_killed_from_outside_is_no_fault_of_the_request(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel kills workers when the container's memory is used up. A new worker prepares the request, once: after
    two deaths clients may repeat it, and SDKs do."""
    monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)  # the new worker loads its tokenizer within this time
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
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would be compiled in the engine, whose end is everyone's."""
    monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)
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


class _Compiler:
    """A worker that finds every grammar wrong, after the share of the usual time that its body is."""

    def __init__(self) -> None:
        self.allowed: list[float] = []

    async def run(self, task: bytes) -> bytes:
        found = decode_task(task)
        self.allowed.append(found.grammar_share)
        used = min(float(found.body), found.grammar_share)
        if used < float(found.body):
            return encode(Rejected(429, "", GRAMMAR_NOT_CHECKED, None, grammar_share=used))
        return encode(Rejected(400, "unclosed group", "invalid_grammar", "guided_regex", grammar_share=used))


async def test_checks_of_new_grammars_have_a_budget_of_cpu_time_for_each_key() -> None:
    """With one after another that took just less than the limit, the answers of others took half as long again."""
    several, now = True, 100.0
    pool, worker = text_pool.TextPool(lambda: several, workers=1), _Compiler()
    pool._grammar_budgets = GrammarBudgets(lambda: now, 2)
    pool._turns.add(worker)  # type: ignore[arg-type]

    async def statuses(key: str, *bodies: bytes) -> list[int]:
        asked = (pool.prepare(key, "chat", READY, body) for body in bodies)
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert all(1 <= int(error.headers["Retry-After"]) <= 5 for error in found if isinstance(error, RefusedError))
        return [error.status for error in found if isinstance(error, APIError)]

    # A check that needs more than is left takes it all; what is wrong with a quicker grammar can soon be found again.
    assert await statuses("rude", b"0.75", b"0.75", b"0.25", b"0.5", b"0.01") == [400, 400, 400, 429, 429]
    assert await statuses("other", b"0.75") == [400]
    now += 2
    assert await statuses("rude", b"0.01", b"0.75") == [400, 429]
    assert worker.allowed == pytest.approx([1, 1, 0.5, 0.25, 0, 1, 0.4, 0.39])
    now += 6
    assert await statuses("rude", b"1") == [400]
    several = False  # clients without keys are not told apart, so that each grammar has the usual time
    assert await statuses("rude", b"1", b"1") == [400, 400]
    assert await statuses("only", *[b"1"] * 9) == [400] * 9
    several = True  # what was checked before costs nothing now
    assert await statuses("only", b"1") == [400]


def test_full_budgets_of_grammars_are_forgotten() -> None:
    now = 100.0
    budgets = GrammarBudgets(lambda: now, 2)
    for used, seconds in ((0.75, 0), (1, 3.75), (0.75, 7.5)):  # checks at the same time may take more than is left
        budgets.take("rude", used)
        assert budgets.seconds_left("rude") == pytest.approx(seconds)
    assert (budgets.share("rude"), budgets.seconds_left("other")) == (0, 0)
    now += 12.5
    budgets.take("other", 0.5)
    assert list(budgets._buckets) == ["other"] and budgets.share("rude") == 1.0


def test_the_cpu_time_of_a_check_is_told_to_the_pool(tokenizer: Tokenizer) -> None:
    body = json.dumps({"prompt": "x", "guided_regex": "never checked before, and counted"}).encode()
    found = [text_worker.answer(tokenizer, Task("completion", READY, body)) for _ in range(2)]
    assert [isinstance(each, Prepared) and each.grammar_share > 0 for each in found] == [True, False]
    wrong = text_worker.answer(tokenizer, Task("completion", READY, body.replace(b"never", b"(never")))
    assert isinstance(wrong, Rejected) and wrong.grammar_share > 0


class _Known:
    """A worker that knows each grammar, and how many digests each of its tasks had."""

    def __init__(self, tokenizer: Tokenizer, told: list[int]) -> None:
        self._tokenizer, self._told = tokenizer, told

    async def run(self, task: bytes) -> bytes:
        found = decode_task(task)
        self._told.append(len(found.checked_grammars))
        return encode(text_worker.answer(self._tokenizer, found))


async def test_each_worker_is_told_which_grammars_others_have_compiled(tokenizer: Tokenizer) -> None:
    """A paused key got 429 for a grammar that another worker had compiled."""
    told: list[int] = []
    pool, body = text_pool.TextPool(lambda: True, workers=1), json.dumps({"prompt": "x", "guided_regex": "[ab]"})
    for _ in range(2):
        pool._turns = text_pool.FairPool(1, lambda: True)
        pool._turns.add(_Known(tokenizer, told))  # type: ignore[arg-type]
        for _ in range(2):
            assert isinstance(await pool.prepare("key", "completion", READY, body.encode()), Prepared)
        await pool.prepare("key", "completion", READY, b'{"prompt": "x"}')
    assert told == [0, 1, 0, 1, 0, 0]


def test_of_checked_grammars_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_grammars, "MOST_PASSED", 2)
    checked, first, second = CheckedGrammars(), _Compiler(), _Compiler()
    for digest in (b"a", b"b", b"a"):
        checked.add(digest)
    # The newest at the end: a worker forgets those that it was told first.
    assert [checked.untold(worker) for worker in (first, second, first)] == [[b"a", b"b"], [b"a", b"b"], []]
    checked.add(b"c")
    assert (checked.untold(first), checked.untold(_Compiler())) == ([b"c"], [b"b", b"c"])


def test_tools_that_take_too_long_are_not_tried_in_another_form(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = Mock(side_effect=SlowGrammarError("slow"))
    monkeypatch.setattr(call_grammars, "check_grammar", checked)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = json.dumps({**HI, "tools": [tool], "tool_choice": "required"}).encode()
    found = text_worker.answer(tokenizer, Task("chat", READY, body))
    assert isinstance(found, Rejected) and (found.status, found.code) == (400, "grammar_too_slow")
    assert checked.call_count == 1


def test_a_grammar_is_compiled_within_its_share_of_time_or_if_another_worker_has_compiled_it(
    tokenizer: Tokenizer,
) -> None:
    def status(share: float, *checked: bytes, **fields: Any) -> int:
        body = json.dumps({"prompt": "x", **fields}).encode()
        found = text_worker.answer(tokenizer, Task("completion", READY, body, share, list(checked)))
        return found.status if isinstance(found, Rejected) else 200

    assert [status(share, guided_regex="[ab]{3}") for share in (0, 1, 0)] == [429, 200, 200]
    slow = {"type": "string", "allOf": [{"pattern": f"(a|b)*a(a|b){{{each}}}"} for each in range(30)]}
    assert status(0.125, guided_json=slow) == 429
    elsewhere = {"guided_regex": "compiled elsewhere"}
    digest = grammar_check.digest(regex_grammar(elsewhere["guided_regex"]))
    assert (status(0), status(0, **elsewhere), status(0, digest, **elsewhere)) == (200, 429, 200)


def test_a_prepared_request_names_its_grammar(tokenizer: Tokenizer) -> None:
    body = json.dumps({"prompt": "x", "guided_regex": "[ab]{3}"}).encode()
    found = text_worker.answer(tokenizer, Task("completion", READY, body))
    assert isinstance(found, Prepared) and found.grammar == grammar_check.digest(regex_grammar("[ab]{3}"))


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


def test_a_request_whose_client_has_gone_is_not_prepared(
    start: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)
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


def test_a_user_who_says_nothing_is_400(server: Served) -> None:
    for message in ({"role": "user"}, {"role": "user", "content": None}):
        answer = server.http.post(CHAT, json={"messages": [message]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content")


def test_too_many_log_probabilities_a_step_are_400(server: Served) -> None:
    answer = server.http.post(TEXT, json={"prompt": ["x"] * 32, "n": 8, "logprobs": 20})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logprobs")
    assert "more than 1024" in answer.json()["error"]["message"]
