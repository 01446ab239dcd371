"""Adapter slots: running requests keep theirs, and no adapter waits forever."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo_engine.core.request import Request
from octavo_engine.engine.adapter_slots import MAX_WAIT, TURN, AdapterSlots
from octavo_engine.engine.adapter_store import AdapterStore
from octavo_engine.engine.adapters import Adapters
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.lora.adapter import Adapter, AdapterWrite
from octavo_engine.sampling_params import SamplingParams


class Store:
    """Every adapter is there, in three parts."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def get(self, digest: str) -> Adapter:
        def writes(slot: int) -> list[AdapterWrite]:
            return [AdapterWrite(slot, digest, "", (), first=part == 0, last=part == 2) for part in range(3)]

        return cast("Adapter", SimpleNamespace(digest=digest, writes=writes))

    def is_used(self, digest: str) -> bool:
        return digest in self.waiting


def make(count: int, *waiting: str) -> tuple[AdapterSlots, list[tuple[int, str]], Store]:
    written: list[tuple[int, str]] = []
    executor: Any = SimpleNamespace(write_adapter=lambda write: written.append((write.slot, write.digest)))
    store = Store()
    store.waiting |= {*waiting}
    return AdapterSlots(count, cast("Any", store), executor), written, store


def test_a_request_begins_when_all_parts_are_on_their_way() -> None:
    slots, written, _ = make(1, "a")
    slots.before_plan((), prefilling=set(), max_writes=1)
    ready = []
    for _ in range(5):
        ready.append(slots.is_ready("a"))
        slots.before_plan((), prefilling=set(), max_writes=1)
    assert ready == [False, False, False, True, True]
    assert written == [(0, "a")] * 3


def test_an_idle_device_gets_some_parts_at_once() -> None:
    slots, written, _ = make(1, "a")
    slots.before_plan((), prefilling=set(), max_writes=2)
    assert not slots.is_ready("a")
    for count, ready in ((2, False), (3, True)):
        slots.before_plan((), prefilling=set(), max_writes=2)
        assert len(written) == count
        assert slots.is_writing == (not ready)
        assert slots.is_ready("a") == ready


def test_parts_that_no_request_waits_for_any_more_are_not_written() -> None:
    """Else requests that are aborted soon would make those that come later wait for all of theirs."""
    slots, written, store = make(1)
    for digest in ("a", "b", "c"):
        store.waiting = {digest}
        slots.is_ready(digest)
        slots.before_plan((), prefilling=set(), max_writes=1)
        slots.forget(digest)
    assert not slots.is_writing
    store.waiting = {"d"}
    slots.is_ready("d")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("d")
    assert written == [(0, "a"), (0, "b"), (0, "c"), *[(0, "d")] * 3]


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_engine_queues_no_more_than_a_newcomer_can_wait_for(idle: bool) -> None:
    """The next parts follow when the device has those before: 200 at once kept the engine from its pings."""
    written: list[AdapterWrite] = []
    executor: Any = SimpleNamespace(write_adapter=written.append, idle=idle)
    writes = [AdapterWrite(0, "a", "", (), first=part == 0, last=part == 199) for part in range(200)]
    adapter = SimpleNamespace(digest="a", writes=lambda _: writes)
    store: Any = SimpleNamespace(get=lambda _: adapter, is_used=lambda _: True, is_reading=False)
    scheduler: Any = SimpleNamespace(
        planner=SimpleNamespace(policy=SimpleNamespace()), running=SimpleNamespace(prefilling=())
    )
    adapters = Adapters(store, 1, scheduler, executor)
    assert not scheduler.planner.policy.adapter_is_ready("a")
    adapters.before_plan((), device_is_idle=True)
    assert len(written) == (4 if idle else 0)
    assert adapters.is_loading
    adapters.before_plan((), device_is_idle=False)
    assert len(written) == (5 if idle else 1)


def test_loads_that_fail_leave_nothing() -> None:
    store = AdapterStore(cast("Any", None), 2)
    for ticket in range(20):
        store.begin_load(ticket, f"name {ticket}", "/nothing")
    ended: list[int] = []
    while len(ended) < 20:
        ended += [ticket for ticket, _ in store.loaded()]
    assert not store._newest


def test_no_more_adapters_run_than_there_are_slots() -> None:
    slots, _, _ = make(2, "a", "b", "c")
    running: list[str] = []
    for _ in range(4):
        slots.before_plan(running, prefilling=set(), max_writes=3)
        running += [each for each in ("a", "b", "c") if each not in running and slots.is_ready(each)]
    assert running == ["a", "b"]
    slots.before_plan(["b"], prefilling=set(), max_writes=3)
    assert not slots.is_ready("c")
    slots.before_plan(["b"], prefilling=set(), max_writes=3)
    assert slots.is_ready("c")
    assert not slots.is_ready("a")


def test_a_slot_on_its_way_to_a_waiting_request_is_not_given_to_another() -> None:
    slots, _, store = make(1, "a", "b")
    for digest in ("a", "b", "b"):
        slots.before_plan((), prefilling=set(), max_writes=3)
        assert not slots.is_ready(digest)
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("a")
    store.waiting.remove("a")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert not slots.is_ready("b")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("b")


def test_an_adapter_that_waits_for_a_slot_gets_one_in_the_end() -> None:
    """Requests for `a` never cease."""
    slots, _, _ = make(1, "a", "b")
    slots.before_plan((), prefilling=set(), max_writes=3)
    slots.is_ready("a")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("a")
    admitted = 0
    for _ in range(2 * MAX_WAIT):
        slots.before_plan(["a"], prefilling=set(), max_writes=3)
        assert not slots.is_ready("b")
        admitted += slots.is_ready("a")
    assert admitted == pytest.approx(MAX_WAIT, abs=2)
    slots.before_plan((), prefilling=set(), max_writes=3)  # they have ended
    assert not slots.is_ready("b")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("b")


def test_a_request_that_goes_on_for_long_gives_its_adapters_slot_up_and_gets_it_back() -> None:
    """One key could keep all slots for as long as its answers are: others' requests waited until their timeout."""
    state = [SimpleNamespace(request=SimpleNamespace(adapter=digest)) for digest in ("a", "b")]
    running: list[Any] = []
    preemptible = False
    policy = SimpleNamespace(preemptible=lambda _: preemptible)
    planner = SimpleNamespace(policy=policy, requeue=running.remove, counters=SimpleNamespace(preemptions=0))
    executor: Any = SimpleNamespace(write_adapter=lambda _: None, idle=True)
    store = Store()
    store.waiting |= {"a", "b"}
    reads = SimpleNamespace(prefilling=[])
    scheduler: Any = SimpleNamespace(planner=planner, running=reads)
    adapters = Adapters(cast("Any", store), 1, scheduler, executor)

    is_ready: Callable[[str], bool] = policy.adapter_is_ready

    def steps(count: int) -> list[str]:
        """The adapter that runs in each step."""
        found = []
        for _ in range(count):
            adapters.before_plan(running, device_is_idle=False)
            running.extend(each for each in state if each not in running and is_ready(each.request.adapter))
            found.append("".join(each.request.adapter for each in running))
        return found

    assert set(steps(3 * TURN)) == {"", "a"}  # as it was preempted too often, and has to run to its end
    preemptible = True
    reads.prefilling.append(state[0])
    adapters._slots._slots[0].decoded = 0
    assert set(steps(3 * TURN)) == {"a"}  # as it still reads its prompt
    reads.prefilling.clear()
    turns = [digest for digest, _ in itertools.groupby(each for each in steps(5 * TURN) if each)]
    assert turns[:4] == ["a", "b", "a", "b"]
    assert planner.counters.preemptions >= 3


def test_an_adapter_whose_requests_have_gone_holds_no_other_up() -> None:
    slots, _, _ = make(1, "a", "b")
    slots.before_plan((), prefilling=set(), max_writes=3)
    slots.is_ready("a")
    for _ in range(2 * MAX_WAIT):
        slots.before_plan(["a"], prefilling=set(), max_writes=3)
        slots.is_ready("a")
        slots.is_ready("b")
    assert not slots.is_ready("a")
    slots.forget("b")
    assert slots.is_ready("a")


def test_an_adapter_that_has_just_got_its_slot_serves_all_of_its_requests() -> None:
    """Otherwise each change of a slot would be for one request, while others wait for slots all the time."""
    slots, _, _ = make(1, "a", "b", "c")
    slots.before_plan((), prefilling=set(), max_writes=3)
    slots.is_ready("a")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert slots.is_ready("a")
    for _ in range(2 * MAX_WAIT):
        slots.before_plan(["a"], prefilling=set(), max_writes=3)
        assert not (slots.is_ready("b") or slots.is_ready("c"))
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert not slots.is_ready("b")
    slots.before_plan((), prefilling=set(), max_writes=3)
    assert [slots.is_ready("b") for _ in range(3)] == [True] * 3
    for _ in range(MAX_WAIT + 1):
        slots.before_plan(["b"], prefilling=set(), max_writes=3)
        assert not slots.is_ready("c")
    assert not slots.is_ready("b")


def test_of_loads_of_one_name_the_one_that_was_asked_for_last_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although an older one, whose client has gone away, ends after it; after an unload none does."""
    store, reads = AdapterStore(cast("Any", None), 4), list[Future[Adapter]]()

    def submit(*_: Any) -> Future[Adapter]:
        reads.append(Future())
        return reads[-1]

    monkeypatch.setattr(store, "_loading", SimpleNamespace(submit=submit))
    for ticket, path in enumerate(("old", "new")):
        store.begin_load(ticket, "sql", path)
    for path, read in reversed(list(zip(("old", "new"), reads, strict=True))):
        read.set_result(cast("Adapter", SimpleNamespace(digest=path, rank=1, base="")))
        ((_, outcome),) = store.loaded()
        assert isinstance(outcome, AdapterInfo if path == "new" else ModelLoadError)
    assert store.digest_of("sql") == "new"
    store.begin_load(2, "sql", "late")
    store.unload("sql")
    reads[2].set_result(cast("Adapter", SimpleNamespace(digest="late", rank=1, base="")))
    ((_, outcome),) = store.loaded()
    assert "was loaded again, or unloaded" in str(outcome)
    with pytest.raises(KeyError):
        store.digest_of("sql")


def test_requests_that_were_sent_before_a_name_was_loaded_anew_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP process names the weights, and hears of new ones later than the engine; an unload forgets them all."""
    store = AdapterStore(cast("Any", None), 4)
    monkeypatch.setattr(store, "_read", lambda path: SimpleNamespace(digest=path, rank=1, base=""))
    sampling = SamplingParams(max_tokens=1)
    for path in ("a", "b", "b", "c", "b"):
        store.load("sql", path)
    assert {*store._known} == {"b", "c"}
    for digest in ("b", "c"):
        store.begin(Request(request_id=digest, prompt_token_ids=(1,), sampling=sampling, adapter=digest))
    store.unload("sql")
    assert {*store._known} == {"b", "c"}
    for digest in ("b", "c"):
        store.end(digest)
    assert not store._known
    assert not store._replaced


def test_adapters_are_read_at_a_lower_priority_than_steps_are_computed() -> None:
    store = AdapterStore(cast("Any", None), 4)
    own, mine = os.getpriority(os.PRIO_PROCESS, 0), threading.get_native_id()
    read = store._loading.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    assert read.result() == min(19, own + 10)
    assert os.getpriority(os.PRIO_PROCESS, mine) == own
    store.close()
