"""Keys that send very many requests, or long ones: all keys take turns at the loop and at the text workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from octavo_engine.server import app
from octavo_engine.server.admission.auth import Key
from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.admission.pacer import Pacer
from octavo_engine.server.errors import APIError
from octavo_engine.server.middleware.authentication import BEGUN_AT_ONCE
from octavo_engine.server.preparation import text_pool
from octavo_engine.server.preparation.prepared import JSONAnswer, encode
from tests.api.hostile import as_key, keys
from tests.api.served import PATIENCE, Served


async def test_keys_take_turns_and_none_takes_everything() -> None:
    turns: FairPool[int] = FairPool(2, lambda: True)
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
    turns: FairPool[int] = FairPool(2, lambda: True, lambda: now)
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


async def test_a_short_task_does_not_wait_for_a_long_one_of_each_new_key() -> None:
    """Though its key has used a little, and each of the others nothing; a long task gets its turn as time passes."""
    now = 0.0
    turns: FairPool[int] = FairPool(1, lambda: True, lambda: now)
    turns.add(1)
    turns.release("user", await turns.acquire("user"), 0.004)
    await turns.acquire("key0", 0.05)
    waiting = [asyncio.create_task(turns.acquire(f"key{number}", 0.05)) for number in range(1, 20)]
    await asyncio.sleep(0)
    user = asyncio.create_task(turns.acquire("user", 0.0001))
    await asyncio.sleep(0)
    turns.release("key0", 1, 0.05)
    async with asyncio.timeout(PATIENCE):
        assert await user == 1
    now = 60.0
    later = asyncio.create_task(turns.acquire("later", 0.004))
    await asyncio.sleep(0)
    turns.release("user", 1, 0.004)
    async with asyncio.timeout(PATIENCE):
        assert await waiting[0] == 1
    for task in (*waiting, later):
        task.cancel()


async def test_a_turn_takes_as_many_steps_among_thousands_of_keys_as_among_few() -> None:
    """Steps are counted by looks at keys in tables: a walk through the keys has one look at each, or more."""
    looks = 0

    class Name(str):
        def __hash__(self) -> int:
            nonlocal looks
            looks += 1
            return super().__hash__()

    async def looks_of_turns(count: int) -> int:
        turns: FairPool[int] = FairPool(1, lambda: False, lambda: 0.0)
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
    turns: FairPool[int] = FairPool(1, lambda: False)
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


async def test_few_requests_begin_between_two_looks_at_what_else_there_is_to_do() -> None:
    """However many come at once, streams go on beside them, and each key's requests have their turn."""
    pacer, begun = Pacer(BEGUN_AT_ONCE), list[str]()

    async def begin(name: str) -> None:
        await pacer.wait(Key(name))
        begun.append(name)

    rude = [asyncio.create_task(begin("rude")) for _ in range(50)]
    await asyncio.sleep(0)
    most, before = 0, 0
    other = asyncio.create_task(begin("other"))
    async with asyncio.timeout(PATIENCE):
        while not all(each.done() for each in rude):
            await asyncio.sleep(0)
            most, before = max(most, len(begun) - before), len(begun)
    assert most <= BEGUN_AT_ONCE
    assert begun.index("other") <= 3 * BEGUN_AT_ONCE
    await other


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the requests that have waited for their turn to begin."""
    found = list[str]()

    class Noting(Pacer):
        async def wait(self, key: Key) -> None:
            found.append(key.name)
            await super().wait(key)

    monkeypatch.setattr(app, "Pacer", Noting)
    return found


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer sk-wrong"}, as_key("small")])
def test_every_request_waits_for_its_turn(
    start: Callable[..., Served], tmp_path: Path, waited: list[str], header: dict[str, str]
) -> None:
    start(api_key_file=keys(tmp_path)).http.get("/version", headers=header)
    assert waited == ["small" if "small" in str(header) else ""]


def test_a_preflight_request_waits_for_its_turn(start: Callable[..., Served], waited: list[str]) -> None:
    """It needs no key: 400 connections that asked without a pause made another key wait for 1.9 s."""
    asks = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    answer = start(allowed_origins=["*"]).http.options("/v1/completions", headers=asks)
    assert (answer.status_code, waited) == (200, [""])
