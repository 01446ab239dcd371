"""Executors, which run plans: on one worker that a thread drives, alone or as the first of a group of ranks."""

from __future__ import annotations

import time
from collections import deque
from concurrent import futures
from concurrent.futures import Future
from typing import Any, Protocol

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.errors import OctavoError
from octavo_engine.model.lora.adapter import AdapterWrite, encode_write
from octavo_engine.runner.device_thread import CLOSE_SECONDS, DeviceThread
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.runner.plan_codec import encode_plan
from octavo_engine.runner.ranks import Ranks
from octavo_engine.runner.worker import ForwardedStep, LaunchedStep, Worker

_LOOK_SECONDS = 0.0005
"""The pause between two checks whether a device is done: CUDA has no wait with a limit."""
_LOST_SECONDS = 0.3
"""Seconds for each of a rank's threads to end when another rank is gone. On GPUs it waits for that one's part of a sum
forever; the error has to be reported and this process ended within 5 s, of which 3 may have gone by."""

_MOST_BEHIND = 16
"""Writes of adapters that are kept while no step runs: ranks without steps are never that far behind the first one."""


class Executor(Protocol):
    """Plans go in, results come out in the same order. A step's `sample` comes before the next step's `forward`."""

    def forward(self, plan: StepPlan) -> None:
        """Have a step's forward pass computed behind the steps before it; returns at once."""

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Have the step sampled whose forward pass was launched last; returns at once."""

    def write_adapter(self, write: AdapterWrite) -> None:
        """Have a part of an adapter put into its slot behind the steps that were launched; returns at once."""

    @property
    def idle(self) -> bool:
        """True if another step would begin at once."""

    def wait(self, seconds: float) -> None:
        """Wait until it is idle, at most for so many seconds."""

    def result(self) -> StepResult:
        """Wait for the oldest launched step; what went wrong in it is raised here."""

    def check(self) -> None:
        """Raises EngineDeadError if what it runs with is dead."""

    def close(self) -> None:
        """Give back device and processes."""


class ThreadExecutor:
    """One worker whose steps are launched by the device's thread, so that planning goes on meanwhile.

    On the CPU a launch is the whole step. On a GPU it is the time in which its kernels are enqueued: the next step's
    launch begins while the device works on this one, and `result` waits for the device.
    """

    def __init__(self, worker: Worker, thread: DeviceThread) -> None:
        self._worker = worker
        self._thread = thread
        self._forwarded: Future[ForwardedStep] = Future()
        self._launched: deque[Future[LaunchedStep]] = deque()
        self._newest: Future[Any] | None = None
        self._writes: deque[Future[None]] = deque()

    def forward(self, plan: StepPlan) -> None:
        """Launch a step's forward pass behind what was launched before; returns at once."""
        self._newest = self._forwarded = self._thread.submit(self._worker.forward, plan)

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Launch the sampling of the step whose forward pass was launched last; returns at once."""
        self._newest = future = self._thread.submit(self._sample, self._forwarded, masks)
        self._launched.append(future)

    def write_adapter(self, write: AdapterWrite) -> None:
        """Have a part of an adapter put into its slot behind the steps that were launched; returns at once."""
        self._newest = future = self._thread.submit(self._worker.write_adapter, write)
        self._writes.append(future)

    def _sample(self, forwarded: Future[ForwardedStep], masks: Masks) -> LaunchedStep:
        return self._worker.sample(forwarded.result(), masks)

    @property
    def idle(self) -> bool:
        """True if neither the device's thread nor the device has anything to do."""
        if self._newest is not None and not self._newest.done():
            return False
        newest = self._launched[-1] if self._launched else None
        # What went wrong in a launch is said by `result`.
        return newest is None or newest.exception() is not None or newest.result().timer.ended()

    def wait(self, seconds: float) -> None:
        """Wait until it is idle, at most for so many seconds."""
        end = time.monotonic() + seconds
        if self._newest is not None:
            futures.wait([self._newest], timeout=max(0.0, seconds))
        while not self.idle and (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECONDS, left))

    def result(self) -> StepResult:
        """Wait for the oldest launched step; what went wrong in it is raised here."""
        result = self._worker.finish(self._launched.popleft().result())
        self._check_writes()
        return result

    def _check_writes(self) -> None:
        """Raise what went wrong in writes that are done."""
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()

    def check(self) -> None:
        """Do nothing: the worker is in this process."""

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let the steps under way end and leave the other ranks, for so long, and end the thread with them."""
        self._thread.submit(self._worker.close)
        self._thread.close(seconds)
        self._launched.clear()


class GroupExecutor:
    """The first rank of a group here, behind `first`; the others are sent every plan before it.

    Results are waited for in a thread of their own: where the device hangs because another rank is gone, `result`
    raises that rank's error all the same. The other ranks do not sample, so they need no masks.
    """

    def __init__(self, first: ThreadExecutor, ranks: Ranks) -> None:
        self._first = first
        self._ranks = ranks
        self._waiting = DeviceThread()
        self._launched = self._finished = 0
        """The numbers of steps that were launched, and of those whose result is there."""
        self._writes: deque[tuple[int, AdapterWrite]] = deque()
        """Writes that ranks may not have done yet, with the number of the step behind each: a step needs all ranks."""

    def forward(self, plan: StepPlan) -> None:
        """Launch a step on all ranks behind what was launched before; returns at once."""
        self._launched += 1
        self._ranks.send(encode_plan(plan))
        self._first.forward(plan)

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Launch the sampling of the newest step, whose tokens the other ranks wait for; returns at once."""
        self._first.sample(masks)

    def write_adapter(self, write: AdapterWrite) -> None:
        """Have a part of an adapter put into its slot on all ranks; returns at once."""
        if self._launched == self._finished and len(self._writes) == _MOST_BEHIND:
            self._writes.popleft()
        self._writes.append((self._launched + 1, write))
        self._ranks.send(encode_write(write))
        self._first.write_adapter(write)

    @property
    def idle(self) -> bool:
        """True if the first rank is idle: the others do the same work."""
        return self._first.idle

    def wait(self, seconds: float) -> None:
        """Wait until it is idle, at most for so many seconds."""
        self._first.wait(seconds)

    def result(self) -> StepResult:
        """Wait for the oldest launched step; what went wrong in it, on any rank, is raised here."""
        result = self._ranks.wait(self._waiting.submit(self._first.result))
        self._finished += 1
        while self._writes and self._writes[0][0] <= self._finished:
            self._writes.popleft()
        return result

    def check(self) -> None:
        """Raises EngineDeadError if a rank is dead or stands still."""
        self._ranks.check()

    def close(self) -> None:
        """End the ranks, then this one, whose device may wait in vain for a rank that is gone."""
        seconds = CLOSE_SECONDS
        try:
            self._ranks.check()
            self._ranks.end()
        except OctavoError:
            self._ranks.kill()
            seconds = _LOST_SECONDS
        self._first.close(seconds)
        self._waiting.close(seconds)
