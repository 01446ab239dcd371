"""Runs the work of several tenants (API keys) in one thread, in which they take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, stack_size
from typing import Any, TypeVar

T = TypeVar("T")

_STACK = 256 << 20
"""Bytes of the thread's stack, of which only the used part takes memory. llguidance recurses for each rule that leads
to another one, and a full stack ends the process. A grammar for which that could happen here has ended a text worker
before, whose stack is far smaller."""


class TenantTurns:
    """A thread in which tenants take turns: one piece of work each, however many pieces a tenant has submitted."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """The work of each tenant that waits; the first tenant is the one whose turn is next."""
        default = stack_size(_STACK)
        self._thread.submit(int).result()  # starts the thread with this stack size
        stack_size(default)

    def submit(self, tenant: str, work: Callable[[], T]) -> Future[T]:
        """Return the future of a piece of work. If it is cancelled before its turn, it never begins."""
        outcome: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append((outcome, work))
        self._thread.submit(self._do_next)
        return outcome

    def _do_next(self) -> None:
        if (piece := self._next()) is None:
            return  # no work is left for this call, as some was cancelled
        outcome, work = piece
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the caller gets it from the future)
            outcome.set_exception(error)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """Return the next piece of work that was not cancelled; its tenant moves to the end of the turns."""
        with self._lock:
            while self._waiting:
                tenant, pieces = self._waiting.popitem(last=False)
                while pieces:
                    outcome, work = pieces.popleft()
                    if outcome.set_running_or_notify_cancel():
                        if pieces:
                            self._waiting[tenant] = pieces
                        return outcome, work
        return None
