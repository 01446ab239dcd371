"""The work queue: a name is in it at most once, is never worked on twice at a time, is never lost, and is retried."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from octavo_operator.reconcile import lease
from octavo_operator.reconcile import queue as queue_module
from octavo_operator.reconcile.api_requests.api_error import NotLeadingError
from octavo_operator.reconcile.queue import ExpectedError, WorkQueue


async def work(
    queue: WorkQueue[str], handle: Callable[[str], Awaitable[float | None]], until: asyncio.Event, workers: int = 4
) -> None:
    tasks = [asyncio.create_task(queue.work(handle)) for _ in range(workers)]
    try:
        await asyncio.wait_for(until.wait(), 120)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_key_added_many_times_is_worked_on_once() -> None:
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "end":
            done.set()

    for key in ("a", "a", "b", "a", "b", "end"):
        queue.add(key)
    await work(queue, handle, done, workers=1)
    assert seen == ["a", "b", "end"]


async def test_a_key_added_while_worked_on_is_worked_on_again_but_not_at_the_same_time() -> None:
    queue, running, passes, done = WorkQueue[str](), 0, 0, asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal running, passes
        running += 1
        assert running == 1
        if passes == 0:
            queue.add(key)
            queue.add(key)
            await asyncio.sleep(0)
        running -= 1
        passes += 1
        if passes == 2:
            done.set()

    queue.add("a")
    await work(queue, handle, done)
    assert passes == 2


@pytest.mark.parametrize("error", [ExpectedError("the API server says no"), RuntimeError("our fault")])
async def test_a_failure_is_tried_again_and_harms_no_other_key(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "FIRST_RETRY_SECONDS", 0.001)
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "bad" and seen.count("bad") < 4:
            raise error
        if seen.count("bad") == 4:
            done.set()

    queue.add("bad")
    queue.add("good")
    await work(queue, handle, done, workers=1)
    assert seen.count("bad") == 4
    assert seen.count("good") == 1


async def test_events_meanwhile_do_not_make_the_pause_longer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a dozen children tells of itself while one of them is refused: that is one failure, not twelve."""
    caplog.set_level(logging.DEBUG, queue_module.__name__)
    monkeypatch.setattr(queue_module, "FIRST_RETRY_SECONDS", 100.0)  # an hour would be cut to the longest pause
    queue, tries, done = WorkQueue[str](), 0, asyncio.Event()

    async def handle(key: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 12:
            queue.add(key)
        else:
            done.set()
        raise ExpectedError("no")

    queue.add("a")
    await work(queue, handle, done)
    await asyncio.sleep(0)
    pauses = [int(line.rpartition("retrying in ")[2].removesuffix(" s")) for line in caplog.messages]
    assert len(pauses) == 12
    assert all(80 <= pause <= 120 for pause in pauses), pauses
    assert [record.levelno for record in caplog.records] == [logging.WARNING] + [logging.DEBUG] * 11


async def test_waiting_is_measured_from_the_oldest_key_once_a_worker_runs() -> None:
    now = 0.0
    queue, handled = WorkQueue[str](clock=lambda: now), asyncio.Event()

    async def handle(key: str) -> None:
        handled.set()
        await asyncio.sleep(3600)

    queue.add("a")
    now = 5.0
    assert queue.oldest_wait_seconds() == 0  # a replica that follows has nothing to answer for
    worker = asyncio.create_task(queue.work(handle))
    await handled.wait()
    now = 8.0
    assert queue.oldest_wait_seconds() == 3  # a reconcile that does not end counts as well
    worker.cancel()


async def test_what_is_urgent_overtakes_and_is_done_once() -> None:
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "end":
            done.set()

    for key in ("a", "b", "changed", "end"):
        queue.add(key)
    queue.add("changed", urgent=True)
    assert len(queue) == 4
    await work(queue, handle, done, workers=1)
    assert seen == ["changed", "a", "b", "end"]


async def test_a_key_comes_again_when_its_handler_asked_for_it() -> None:
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> float | None:
        seen.append(key)
        if len(seen) == 3:
            done.set()
            return None
        return 0.001

    queue.add("a")
    await work(queue, handle, done)
    assert seen == ["a", "a", "a"]


@pytest.mark.parametrize("happens", [True, False])
async def test_what_happens_before_a_timer_takes_its_place(happens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, seen, now = WorkQueue[str](), [], 0.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)

    async def handle(key: str) -> float | None:
        seen.append(key)
        return 60 if len(seen) == 1 else None

    async def worked_on() -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        return len(seen)

    worker = asyncio.create_task(queue.work(handle))
    queue.add("a")
    assert await worked_on() == 1
    now = 30.0
    if happens:
        queue.add("a")
    assert await worked_on() == (2 if happens else 1)
    now = 100.0  # past the timer
    assert await worked_on() == 2
    worker.cancel()


async def test_a_key_that_changes_without_end_takes_turns_at_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PACE_SECONDS", 0.02)
    now, seen, done = 0.0, list[str](), asyncio.Event()
    queue = WorkQueue[str](clock=lambda: now)

    async def handle(key: str) -> None:
        nonlocal now
        seen.append(key)
        if key == "often":
            queue.add("often", urgent=True)
        elif key == "other":
            assert seen.count("often") == queue_module.BURST
            now += 0.02
            queue.add_after("end", 0.1)
        else:
            done.set()

    queue.add("often")
    queue.add("other")
    await work(queue, handle, done, workers=1)
    assert seen.count("often") == queue_module.BURST + 1


async def test_a_key_that_has_failed_for_days_is_still_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(queue_module, "LAST_RETRY_SECONDS", 0.0)
    queue, tries, done = WorkQueue[str](), 0, asyncio.Event()

    async def handle(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1100:  # 2.0**1024 is no float any more
            done.set()
        raise ExpectedError("no")

    queue.add("bad")
    await work(queue, handle, done, workers=1)
    assert tries >= 1100


async def test_a_failure_is_tried_again_when_something_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only after a pause that has grown to minutes."""
    monkeypatch.setattr(queue_module, "FIRST_RETRY_SECONDS", 300.0)
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if len(seen) == 2:
            done.set()
            return
        error = ExpectedError("no")
        error.within = 0.01
        raise error

    queue.add("a")
    await work(queue, handle, done)
    assert seen == ["a", "a"]


async def test_what_failed_since_the_lease_was_renewed_late_is_tried_again_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the API server refused a third of all requests, a leader left LLMServices alone for minutes."""
    monkeypatch.setattr(queue_module, "FIRST_RETRY_SECONDS", 300.0)
    queue, pauses, done = WorkQueue[str](), list[float](), asyncio.Event()

    async def handle(key: str) -> None:
        raise NotLeadingError("does not hold the lease")

    def add_after(key: str, seconds: float) -> None:
        pauses.append(seconds)
        done.set()

    monkeypatch.setattr(queue, "add_after", add_after)
    queue.add("a")
    await work(queue, handle, done)
    assert pauses == [2.0]


async def test_what_is_cleared_is_forgotten_and_can_be_added_again() -> None:
    queue, seen, done = WorkQueue[str](), [], asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "end":
            done.set()

    for key in ("a", "b"):
        queue.add(key)
    queue.add_after("timed", 0.001)
    queue.clear()
    assert len(queue) == 0
    await asyncio.sleep(0.01)
    assert len(queue) == 0
    for key in ("b", "end"):
        queue.add(key)
    await work(queue, handle, done, workers=1)
    assert seen == ["b", "end"]


async def test_a_namespace_in_which_nothing_answers_leaves_half_of_the_workers_to_the_others() -> None:
    now, answers, done, running, most = 0.0, asyncio.Event(), asyncio.Event(), 0, 0
    queue = WorkQueue[tuple[str, str]](clock=lambda: now, group_of=lambda key: key[0])
    seen = []

    async def handle(key: tuple[str, str]) -> None:
        nonlocal now, running, most
        if key[0] == "sick":
            running += 1
            most = max(most, running)
            now += queue_module.SLOW_SECONDS
            await answers.wait()
            running -= 1
        seen.append(key)
        if key == ("well", "last"):
            done.set()

    queue.add(("sick", "first"))
    workers = asyncio.create_task(work(queue, handle, done))  # type: ignore[arg-type]
    while not running:
        await asyncio.sleep(0)
    for number in range(20):
        queue.add(("sick", str(number)))
    queue.add(("well", "last"))
    await workers
    assert most == 2, "of four workers"
    assert seen == [("well", "last")]


async def test_a_single_write_that_hangs_makes_a_namespace_slow() -> None:
    """Such a write has what is left of the lease: least where the second of two requests has just renewed it."""
    now, done = 0.0, asyncio.Event()
    queue = WorkQueue[str](clock=lambda: now, group_of=lambda key: key)

    async def handle(_: str) -> None:
        nonlocal now
        now += lease.DEADLINE_SECONDS - lease.PAUSE_SECONDS - lease.REQUEST_SECONDS
        done.set()

    queue.add("sick")
    await work(queue, handle, done, workers=1)
    assert list(queue._slow) == ["sick"]


async def test_namespaces_that_were_slow_long_ago_are_forgotten() -> None:
    now, done = 0.0, asyncio.Event()
    queue = WorkQueue[str](clock=lambda: now, group_of=lambda key: key)

    async def handle(key: str) -> None:
        nonlocal now
        now += 400
        if key == "last":
            done.set()

    for key in ("first", "second", "last"):
        queue.add(key)
    await work(queue, handle, done, workers=1)
    assert list(queue._slow) == ["last"]


async def test_what_had_to_wait_for_a_slow_one_is_worked_on_when_that_ends() -> None:
    now, done = 0.0, asyncio.Event()
    queue = WorkQueue[tuple[str, str]](clock=lambda: now, group_of=lambda key: key[0])
    seen = set()

    async def handle(key: tuple[str, str]) -> None:
        nonlocal now
        now += queue_module.SLOW_SECONDS
        await asyncio.sleep(0)
        seen.add(key)
        if len(seen) == 9:
            done.set()

    for number in range(9):
        queue.add(("sick", str(number)))
    await work(queue, handle, done)  # type: ignore[arg-type]
    assert len(queue) == 0
