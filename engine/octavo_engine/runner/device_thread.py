"""The one thread that computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

CLOSE_SECONDS = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Does what it is told, one thing after another.

    All that PyTorch computes, loading included, belongs in this thread: OpenMP keeps a team of threads for each thread
    that ever computed, and with two teams on all cores both wait for each other asleep instead of awake, which made
    steps on the CPU a quarter to a third slower. It is a daemon, so that an interrupt need not wait for a load.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="octavo-device", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `work` done; its result or exception is the future's."""
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  (whoever asks for the result hears of it)
                future.set_exception(error)

        self._jobs.put(job)
        return future

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Do what was submitted, then end. A device that hangs is waited for no longer: the process ends without it."""
        self._jobs.put(None)
        self._thread.join(seconds)
