"""Who executes plans: one worker in this process; a group of ranks has its place behind the same methods."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.runner.worker import Worker


class Executor(Protocol):
    """Plans go in, results come out in the same order."""

    def submit(self, plan: StepPlan) -> None:
        """Launch a step."""

    def collect(self) -> StepResult:
        """Wait for the oldest launched step."""

    def close(self) -> None:
        """Give back device and processes."""


class InlineExecutor:
    """One worker, in the caller's thread."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._results: deque[StepResult] = deque()

    def submit(self, plan: StepPlan) -> None:
        """Launch a step."""
        self._results.append(self._worker.execute(plan))

    def collect(self) -> StepResult:
        """The oldest launched step's result."""
        return self._results.popleft()

    def close(self) -> None:
        """Nothing to give back but memory."""
        self._results.clear()
