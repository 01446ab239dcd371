"""Work on one thread that tenants (API keys) give it: a piece of each in turn, however many pieces one of them has."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, stack_size
from typing import Any, TypeVar

T = TypeVar("T")

_STACK = 256 << 20
"""Bytes of the thread's stack, of which only what is used takes memory. llguidance calls itself for each rule that
leads to another one, and ends the process where its stack ends. That has to be a text worker, whose stack is far
smaller."""


class TenantTurns:
    """A thread. A piece of work waits for at most one of each other tenant, and for those of its own before it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = Lock()
        self._waiting: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        """What each tenant waits for, the tenant whose turn is next first."""
        default = stack_size(_STACK)
        self._thread.submit(int).result()  # begins the thread
        stack_size(default)

    def submit(self, tenant: str, work: Callable[[], T]) -> Future[T]:
        """The outcome of a piece of work. One that is cancelled before its turn is never begun, and takes no turn."""
        outcome: Future[T] = Future()
        with self._lock:
            self._waiting.setdefault(tenant, deque()).append((outcome, work))
        self._thread.submit(self._do_next)
        return outcome

    def _do_next(self) -> None:
        if (piece := self._next()) is None:
            return  # as many as were submitted have been taken: some were cancelled
        outcome, work = piece
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001  (the caller gets it from the future)
            outcome.set_exception(error)

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The first piece that is still wanted of the tenant whose turn it is, which is the last one from now on."""
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
