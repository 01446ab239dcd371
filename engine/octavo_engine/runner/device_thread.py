"""The device thread: the only thread of this process in which PyTorch computes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from octavo_engine.errors import EngineDeadError

CLOSE_SECONDS = 5.0

P = ParamSpec("P")
T = TypeVar("T")


class DeviceThread:
    """Runs submitted jobs one after another.

    All of PyTorch's computation, loading included, belongs in this thread: OpenMP keeps a team of threads for each
    thread that ever computed, and with two teams on all cores both sleep instead of spinning when they wait, which made
    steps on the CPU a quarter to a third slower. It is a daemon thread, so an interrupt need not wait for a load.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._unfinished: set[Future[Any]] = set()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="octavo-device", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `work` after all jobs submitted before; the future gets its result or exception."""
        future: Future[T] = Future()
        self._unfinished.add(future)
        future.add_done_callback(self._unfinished.discard)

        def job() -> None:
            try:
                future.set_result(work(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  (the future's reader gets it)
                future.set_exception(error)

        self._jobs.put(job)
        if self._ended:
            self._fail_all()
        return future

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        finally:
            self._ended = True
            self._fail_all()

    def _fail_all(self) -> None:
        """Fail all unfinished jobs, because the thread has ended, so that no caller waits for them."""
        for future in list(self._unfinished):
            with contextlib.suppress(InvalidStateError):  # the other thread that runs this was quicker
                future.set_exception(EngineDeadError("the thread that computes has ended"))

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Run all submitted jobs, then end the thread; wait at most `seconds`, as the device may hang."""
        self._jobs.put(None)
        self._thread.join(seconds)
