"""Who executes plans: one worker, driven by a thread; a group of ranks has its place behind the same methods."""

from __future__ import annotations

from collections import deque
from concurrent import futures
from concurrent.futures import Future
from typing import Protocol

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.worker import LaunchedStep, Worker


class Executor(Protocol):
    """Plans go in, results come out in the same order."""

    def submit(self, plan: StepPlan) -> None:
        """Launch a step behind those launched before; returns at once."""

    @property
    def idle(self) -> bool:
        """Whether another step would begin to be launched at once."""

    def wait(self, seconds: float) -> None:
        """Until it is idle, or so many seconds are over."""

    def collect(self) -> StepResult:
        """Wait for the oldest launched step; what went wrong in it is raised here."""

    def close(self) -> None:
        """Give back device and processes."""


class ThreadExecutor:
    """One worker whose steps are launched by the device's thread, so that planning goes on meanwhile.

    On the CPU a launch is the whole step. On a GPU it is the time in which its kernels are enqueued: the next step's
    launch begins while the device works on this one, and `collect` waits for the device.
    """

    def __init__(self, worker: Worker, thread: DeviceThread) -> None:
        self._worker = worker
        self._thread = thread
        self._launched: deque[Future[LaunchedStep]] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Launch a step behind those launched before; returns at once."""
        self._launched.append(self._thread.submit(self._worker.launch, plan))

    @property
    def idle(self) -> bool:
        """Whether the device's thread has nothing to do: on the CPU nor has the device."""
        return not self._launched or self._launched[-1].done()

    def wait(self, seconds: float) -> None:
        """Until it is idle, or so many seconds are over."""
        if self._launched:
            futures.wait([self._launched[-1]], timeout=max(0.0, seconds))

    def collect(self) -> StepResult:
        """Wait for the oldest launched step; what went wrong in it is raised here."""
        return self._worker.finish(self._launched.popleft().result())

    def close(self) -> None:
        """Let the steps under way end, and the thread with them."""
        self._thread.close()
        self._launched.clear()
