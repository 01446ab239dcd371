"""A worker in a thread of its own: when it counts as idle while a GPU still computes, and how it ends."""

from __future__ import annotations

import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.errors import EngineDeadError
from octavo_engine.model.lora.adapter import AdapterWrite, MemoryFile
from octavo_engine.runner import executor
from octavo_engine.runner.cpu_threads import configure_cpu_threads
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.executor import GroupExecutor, ThreadExecutor
from octavo_engine.runner.masks import Masks
from octavo_engine.runner.worker import ForwardedStep, LaunchedStep, Worker

NOTHING = cast("Any", None)


class Device:
    """A worker that launches at once what its device does later, with the timer of each step."""

    def __init__(self) -> None:
        self.done, self.asked = False, 0

    def forward(self, plan: StepPlan) -> ForwardedStep:
        return NOTHING

    def sample(self, forwarded: ForwardedStep, masks: Masks) -> LaunchedStep:
        return LaunchedStep(NOTHING, cast("Any", self), [], {}, {})

    def finish(self, launched: LaunchedStep) -> StepResult:
        return NOTHING

    def close(self) -> None:
        """Do nothing."""

    def ended(self) -> bool:
        """The timer's method: true after some calls."""
        self.asked += 1
        return self.done or self.asked > 3


def launched(device: Device) -> ThreadExecutor:
    executor = ThreadExecutor(cast("Any", device), DeviceThread())
    assert executor.idle
    executor.forward(NOTHING)
    executor.sample()
    executor._launched[-1].result()
    return executor


def test_a_device_that_works_is_not_idle_although_its_thread_is() -> None:
    """Otherwise each next step would be planned at once, and requests that arrive wait for one step more."""
    device = Device()
    executor = launched(device)
    assert not executor.idle
    device.done = True
    assert executor.idle
    executor.close()


@pytest.mark.parametrize("seconds", [-1.0, 0.0])
def test_a_wait_is_no_longer_than_it_should_be(seconds: float) -> None:
    executor = launched(Device())
    begin = time.monotonic()
    executor.wait(seconds)
    assert not executor.idle
    assert time.monotonic() - begin < 60
    executor.close()


def test_a_step_does_not_wait_for_a_thread_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 3: it ends by an error outside its work. Work that it still had to do fails by it, as does later work."""
    died = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: died.set())
    thread, go_on = DeviceThread(), threading.Event()
    executor = ThreadExecutor(cast("Any", Device()), thread)
    thread.submit(go_on.wait, 60)
    thread._jobs.put(cast("Any", "no job"))  # to call it is an error that no future takes
    executor.forward(NOTHING)
    executor.sample()
    go_on.set()
    with pytest.raises(EngineDeadError, match="thread that computes has ended"):
        executor.result()
    assert died.wait(60)
    executor.forward(NOTHING)
    executor.sample()
    with pytest.raises(EngineDeadError, match="thread that computes has ended"):
        executor.result()


def test_a_wait_ends_when_the_device_is_done() -> None:
    executor = launched(Device())
    executor.wait(3600.0)
    assert executor.idle
    executor.close()


def test_graphs_are_gone_before_ranks_part() -> None:
    """NCCL may hang where they still hold its communicators."""
    graphs = cast("Any", Device())
    alive, seen = weakref.ref(graphs), list[bool]()
    ranks = SimpleNamespace(close=lambda: seen.append(alive() is not None))
    worker = Worker.__new__(Worker)
    worker._graphs = worker._adapter_graphs = graphs
    worker._decoder = cast("Any", SimpleNamespace(ranks=ranks))
    del graphs
    ThreadExecutor(worker, DeviceThread()).close()
    assert seen == [False]


def test_a_closed_executor_keeps_nothing_of_its_worker() -> None:
    """Another engine in this process may need the memory of its weights, even while the first one is referred to."""
    device = Device()
    gone, executor = weakref.ref(device), ThreadExecutor(cast("Any", device), DeviceThread())
    del device
    executor.close()
    executor.close()
    assert gone() is None
    with pytest.raises(EngineDeadError, match="has been closed"):
        executor.forward(cast("Any", None))


def test_a_group_keeps_a_write_until_a_step_behind_it_is_done() -> None:
    """All ranks take part in a step, so they have done then what came before it."""
    ranks: Any = SimpleNamespace(send=lambda _: None, wait=lambda future: future.result())
    first: Any = SimpleNamespace(forward=lambda _: None, write_adapter=lambda _: None, result=lambda: None)
    group = GroupExecutor(first, ranks)
    write = AdapterWrite(0, "a", "", (), first=True, last=True, file=MemoryFile("a"))
    file = weakref.ref(cast("MemoryFile", write.file))
    group.forward(StepPlan(0))
    group.write_adapter(write)
    del write
    group.result()
    assert file() is not None, "that step was before it"
    group.forward(StepPlan(1))
    assert file() is not None
    group.result()
    assert file() is None


def test_a_group_without_steps_keeps_no_more_than_the_newest_writes() -> None:
    """Clients may name adapters and leave before a first step."""
    group = GroupExecutor(cast("Any", SimpleNamespace(write_adapter=lambda _: None)), cast("Any", Mock()))
    files = []
    for _ in range(50):
        write = AdapterWrite(0, "a", "", (), first=True, last=True, file=MemoryFile("a"))
        files.append(weakref.ref(cast("MemoryFile", write.file)))
        group.write_adapter(write)
    del write
    assert sum(file() is not None for file in files) == executor._MOST_BEHIND


def test_an_end_that_hangs_is_not_waited_for() -> None:
    never = threading.Event()
    worker = SimpleNamespace(close=lambda: never.wait(300))
    begin = time.monotonic()
    ThreadExecutor(cast("Any", worker), DeviceThread()).close(0.1)
    assert time.monotonic() - begin < 100
    never.set()


@pytest.mark.usefixtures("several_threads")
def test_numbers_near_zero_are_zero_where_a_cpu_computes() -> None:
    """In the device thread and in OpenMP's threads that it starts, and in no other thread of a process with an LLM."""
    tiny = torch.full((1 << 20,), 1e-40)
    thread = DeviceThread()
    thread.submit(configure_cpu_threads, {"OMP_NUM_THREADS": "2"}).result()
    assert thread.submit(lambda: int((tiny * 1).count_nonzero())).result() == 0
    thread.close()
    assert int((tiny * 1).count_nonzero()) == len(tiny)
