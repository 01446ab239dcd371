"""Executors, which run step plans: on one worker in a thread, or on that worker and the other ranks of its group."""

from __future__ import annotations

import time
from collections import deque
from concurrent import futures
from concurrent.futures import Future
from typing import Any, Protocol

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.errors import EngineDeadError, OctavoError
from octavo_engine.model.lora.adapter import AdapterWrite, encode_write
from octavo_engine.runner.device_thread import CLOSE_SECONDS, DeviceThread
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.runner.ranks.plan_codec import encode_plan
from octavo_engine.runner.ranks.rank_processes import Ranks
from octavo_engine.runner.worker import ForwardedStep, LaunchedStep, Worker

_LOOK_SECONDS = 0.0005
"""The pause between two checks whether a device is done: CUDA has no wait with a timeout."""
_LOST_SECONDS = 0.3
"""Seconds for which the end of each thread of this process is waited for when another rank has died. On a GPU a thread
may wait in an all-reduce for that rank for ever, but this process must report the error and end within 5 s of the
death, and up to 3 s of them pass before the death is noticed."""

_MOST_BEHIND = 16
"""The most adapter writes whose memory is kept while no step runs: idle ranks are never further behind the first."""


class Executor(Protocol):
    """Runs plans and returns their results in the same order. Call a step's `sample` before the next `forward`."""

    def forward(self, plan: StepPlan) -> None:
        """Enqueue a step's forward pass after the steps before it, and return at once."""

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Enqueue the sampling of the step whose forward pass was launched last, and return at once."""

    def write_adapter(self, write: AdapterWrite) -> None:
        """Enqueue the write of a part of an adapter into its slot, after the launched steps, and return at once."""

    @property
    def idle(self) -> bool:
        """True if a further step would begin at once."""

    def wait(self, seconds: float) -> None:
        """Wait until the executor is idle, at most `seconds`."""

    def result(self) -> StepResult:
        """Wait for the oldest launched step and return its result, or raise the error that it had."""

    def check(self) -> None:
        """Raise EngineDeadError if a process that it needs is dead."""

    def close(self) -> None:
        """Release the device and end the processes."""


class ThreadExecutor:
    """Runs one worker in the device thread, so that the next step is planned while this one is launched.

    On the CPU a launch computes the whole step. On a GPU it only enqueues the kernels: the next step is launched while
    the device works on this one, and `result` waits for the device.
    """

    def __init__(self, worker: Worker, thread: DeviceThread) -> None:
        self._open: Worker | None = worker
        self._thread = thread
        self._forwarded: Future[ForwardedStep] = Future()
        self._launched: deque[Future[LaunchedStep]] = deque()
        self._newest: Future[Any] | None = None
        self._writes: deque[Future[None]] = deque()

    @property
    def _worker(self) -> Worker:
        if self._open is None:
            raise EngineDeadError("the engine has been closed")
        return self._open

    def forward(self, plan: StepPlan) -> None:
        """Launch a step's forward pass after all earlier launches; returns at once."""
        self._newest = self._forwarded = self._thread.submit(self._worker.forward, plan)

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Launch the sampling of the step whose forward pass was launched last; returns at once."""
        self._newest = future = self._thread.submit(self._sample, self._forwarded, masks)
        self._launched.append(future)

    def write_adapter(self, write: AdapterWrite) -> None:
        """Launch the write of a part of an adapter into its slot, after all earlier launches; returns at once."""
        self._newest = future = self._thread.submit(self._worker.write_adapter, write)
        self._writes.append(future)

    def _sample(self, forwarded: Future[ForwardedStep], masks: Masks) -> LaunchedStep:
        return self._worker.sample(forwarded.result(), masks)

    @property
    def idle(self) -> bool:
        """True if neither the device thread nor the device has anything to do."""
        if self._newest is not None and not self._newest.done():
            return False
        newest = self._launched[-1] if self._launched else None
        # `result` raises the error of a launch that failed.
        return newest is None or newest.exception() is not None or newest.result().timer.ended()

    def wait(self, seconds: float) -> None:
        """Wait until the executor is idle, at most `seconds`."""
        end = time.monotonic() + seconds
        if self._newest is not None:
            futures.wait([self._newest], timeout=max(0.0, seconds))
        while not self.idle and (left := end - time.monotonic()) > 0:
            time.sleep(min(_LOOK_SECONDS, left))

    def result(self) -> StepResult:
        """Wait for the oldest launched step and return its result, or raise the error that it had."""
        result = self._worker.finish(self._launched.popleft().result())
        self._check_writes()
        return result

    def _check_writes(self) -> None:
        """Raise the error of a finished adapter write that failed."""
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()

    def check(self) -> None:
        """Do nothing: the worker is in this process."""

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Finish the launched steps, disconnect from the other ranks, and end the thread; wait at most `seconds`.

        The worker is dropped with its weights and cache, whose memory another engine in this process may need.
        """
        if self._open is None:
            return
        self._thread.submit(self._open.close)
        self._thread.close(seconds)
        self._launched.clear()
        self._forwarded, self._newest, self._open = Future(), None, None


class GroupExecutor:
    """Runs the first rank in this process with `first`, and sends every plan to the other ranks before that.

    A thread of its own waits for results, so that `result` raises another rank's error even if the device hangs because
    that rank has died. The other ranks do not sample, so they need no masks.
    """

    def __init__(self, first: ThreadExecutor, ranks: Ranks) -> None:
        self._first = first
        self._ranks = ranks
        self._waiting = DeviceThread()
        self._launched = self._finished = 0
        """The numbers of launched steps and of those whose result was returned."""
        self._writes: deque[tuple[int, AdapterWrite]] = deque()
        """Adapter writes that some rank may not have done yet, each with the number of the next step after it. That
        step's result shows that all ranks have done the write; until then the write's memory must stay."""

    def forward(self, plan: StepPlan) -> None:
        """Launch a step's forward pass on all ranks after all earlier launches; returns at once."""
        self._launched += 1
        self._ranks.send(encode_plan(plan))
        self._first.forward(plan)

    def sample(self, masks: Masks = NO_MASKS) -> None:
        """Launch the sampling of the newest step on the first rank, which sends the tokens to the others."""
        self._first.sample(masks)

    def write_adapter(self, write: AdapterWrite) -> None:
        """Launch the write of a part of an adapter into its slot on all ranks; returns at once."""
        if self._launched == self._finished and len(self._writes) == _MOST_BEHIND:
            self._writes.popleft()
        self._writes.append((self._launched + 1, write))
        self._ranks.send(encode_write(write))
        self._first.write_adapter(write)

    @property
    def idle(self) -> bool:
        """True if the first rank is idle; the other ranks do the same work at the same time."""
        return self._first.idle

    def wait(self, seconds: float) -> None:
        """Wait until the executor is idle, at most `seconds`."""
        self._first.wait(seconds)

    def result(self) -> StepResult:
        """Wait for the oldest launched step and return its result, or raise the error that any rank had."""
        result = self._ranks.wait(self._waiting.submit(self._first.result))
        self._finished += 1
        while self._writes and self._writes[0][0] <= self._finished:
            self._writes.popleft()
        return result

    def check(self) -> None:
        """Raise EngineDeadError if a rank is dead or stalled."""
        self._ranks.check()

    def close(self) -> None:
        """End the other ranks, then the first; its device may hang if another rank has died."""
        seconds = CLOSE_SECONDS
        try:
            self._ranks.check()
            self._ranks.end()
        except OctavoError:
            self._ranks.kill()
            seconds = _LOST_SECONDS
        self._first.close(seconds)
        self._waiting.close(seconds)
