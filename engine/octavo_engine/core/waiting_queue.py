"""The queue of waiting requests, and the order in which they are tried.

Requests with a lower priority number come first (under `fcfs` all have priority 0), but all of one priority rise one
level for every `ageing_seconds` that the oldest of them has waited, so that no request waits for ever. Within a
priority tenants take turns by tokens (`fairness`); within a tenant it is first come, first served, except that
preempted requests and forks come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from heapq import heappop, heapreplace
from math import inf

from octavo_engine.core.fairness import Accounts
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.settings import SchedulerSettings


class WaitingQueue:
    """All waiting requests. `next` proposes one; `take` removes it."""

    def __init__(self, settings: SchedulerSettings, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._by_priority: dict[int, dict[str, deque[RequestState]]] = {}
        self._length = 0
        self._turns: list[tuple[int, float, int, str]] | None = None  # the heap of `next`

    def __len__(self) -> int:
        return self._length

    def priority(self, state: RequestState) -> int:
        """Return the priority by which a request is queued; low numbers are more important."""
        return state.request.priority if self._settings.policy == "priority" else 0

    def level(self, state: RequestState, now: float) -> int:
        """Return a request's priority less one for each `ageing_seconds` since its arrival; low is more important."""
        return self._aged(self.priority(state), state.arrival, now)

    def levels(self, now: float) -> dict[int, int]:
        """Return the level of the oldest request of each priority that has requests."""
        return {priority: self._rank(priority, queues, now)[0] for priority, queues in self._by_priority.items()}

    def add(self, state: RequestState, *, first: bool = False) -> None:
        """Queue a request behind, or with `first` ahead of, its tenant's other requests."""
        queues = self._by_priority.setdefault(self.priority(state), {})
        if state.tenant not in queues:
            self._accounts.wait(state.tenant)
        requests = queues.setdefault(state.tenant, deque())
        requests.insert(0 if first else len(requests), state)
        self._length += 1
        self._turns = None

    def remove(self, state: RequestState) -> None:
        """Remove a request from the queue."""
        priority = self.priority(state)
        queues = self._by_priority[priority]
        queues[state.tenant].remove(state)
        if not queues[state.tenant]:
            del queues[state.tenant]
        if not queues:
            del self._by_priority[priority]
        self._length -= 1

    def order(self, now: float) -> list[int]:
        """Begin a step's turns; return the priorities in the order in which they are served now."""
        self._turns = None
        return sorted(self._by_priority, key=lambda priority: self._rank(priority, self._by_priority[priority], now))

    def next(
        self, order: list[int], blocked: Callable[[RequestState], bool], over_share: Container[str] = ()
    ) -> RequestState | None:
        """Return the next request in turn that is not `blocked` and whose tenant is not in `over_share`, or None.

        Thousands of tenants may have a turn in one step, so they are in a heap. Until `order` is called again, only the
        tenant that was next gets another place, and what is `blocked` or in `over_share` stays so.
        """
        if self._turns is None:
            tenants = [(rank, each) for rank, level in enumerate(order) for each in self._by_priority.get(level, ())]
            self._turns = [(rank, -inf, number, tenant) for number, (rank, tenant) in enumerate(tenants)]
        while self._turns:
            rank, place, number, tenant = self._turns[0]
            requests = self._by_priority.get(order[rank], {}).get(tenant, deque())
            if tenant in over_share or (head := _head(requests, blocked)) is None:
                heappop(self._turns)
            elif place == (its_place := self._accounts.place(head, _cost(head))):
                return head
            else:
                heapreplace(self._turns, (rank, its_place, number, tenant))
        return None

    def take(self, state: RequestState) -> None:
        """Remove a request that is admitted, and charge its tenant."""
        self._accounts.admitted(state.tenant, _cost(state))
        self.remove(state)

    def _rank(self, priority: int, queues: dict[str, deque[RequestState]], now: float) -> tuple[int, float]:
        oldest = min(requests[0].arrival for requests in queues.values())
        return self._aged(priority, oldest, now), oldest

    def _aged(self, priority: int, arrival: float, now: float) -> int:
        return priority - int(max(0.0, now - arrival) / self._settings.ageing_seconds)


def _head(requests: deque[RequestState], blocked: Callable[[RequestState], bool]) -> RequestState | None:
    """Return the tenant's first request that is not `blocked`; None if a token of it is still in flight."""
    for state in requests:
        if not blocked(state):
            return state if state.in_flight == 0 else None
    return None


def _cost(state: RequestState) -> int:
    """Return the tokens that admitting a request costs its tenant; a prompt is charged only once."""
    return state.prompt_len if state.scheduled_at is None and state.fork_of is None else 1
