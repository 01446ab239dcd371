"""Runs the work of several tenants (API keys) in one thread, in which they take turns."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, stack_size
from typing import Any, TypeVar

from octavo_engine.recent_uses import RecentUses

T = TypeVar("T")

_STACK = 256 << 20
"""Bytes of the thread's stack, of which only the used part takes memory. llguidance recurses for each rule that leads
to another one, and a full stack ends the process. A grammar for which that could happen here has ended a text worker
before, whose stack is far smaller."""
_LEAST = 1e-6
"""CPU seconds that any work counts for."""


class FairThread:
    """A thread in which tenants take turns: one piece of work each, however many pieces a tenant has submitted.

    The next turn is that of the tenant whose work has taken the least CPU time lately: otherwise a tenant with a short
    piece would wait for a long one of each other tenant.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """The work of each tenant that waits; of tenants that have used as much, the first is the next."""
        self._uses = RecentUses(time.monotonic)
        """The CPU time of each tenant's work. Only the thread reads and writes it."""
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
        tenant, outcome, work = piece
        try:
            outcome.set_result(self._counted(tenant, work))
        except BaseException as error:  # noqa: BLE001  (the caller gets it from the future)
            outcome.set_exception(error)

    def _counted(self, tenant: str, work: Callable[[], T]) -> T:
        """Do a tenant's work and count its CPU time."""
        begin = time.thread_time()
        try:
            return work()
        finally:
            self._uses.add(tenant, max(_LEAST, time.thread_time() - begin))

    def _next(self) -> tuple[str, Future[Any], Callable[[], Any]] | None:
        """Return a tenant and its next piece of work that was not cancelled; the tenant moves to the end."""
        with self._lock:
            while self._waiting:
                tenant = min(self._waiting, key=self._uses.rank)
                pieces = self._waiting.pop(tenant)
                while pieces:
                    outcome, work = pieces.popleft()
                    if outcome.set_running_or_notify_cancel():
                        if pieces:
                            self._waiting[tenant] = pieces
                        return tenant, outcome, work
        return None
