"""The requests that wait, and which one is next.

A *lane* holds the requests of one priority (there is only one under `fcfs`). Lanes are served in the order of their
priority, but a lane moves up one level for every `ageing_seconds` its oldest request has waited: nothing waits for
ever. Inside a lane tenants take turns by deficit round robin; inside a tenant it is first come, first served, except
that requests which had already run (preempted ones, forks) come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from octavo_engine.core.fairness import Account, Accounts, next_turn
from octavo_engine.core.request import Request
from octavo_engine.core.settings import SchedulerSettings


class WaitingQueue:
    """All waiting requests. `next` proposes one; `take` removes it."""

    def __init__(self, settings: SchedulerSettings, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._lanes: dict[int, dict[str, deque[Request]]] = {}
        self._members: set[Request] = set()
        self.tokens = 0
        """Prompt tokens of the requests that have never run."""

    def __len__(self) -> int:
        return len(self._members)

    def importance(self, request: Request) -> int:
        """The lane a request belongs to; low numbers matter most."""
        return request.priority if self._settings.policy == "priority" else 0

    def most_important(self) -> float:
        """The lowest number of all that wait; infinity if nobody does."""
        return min(self._lanes, default=float("inf"))

    def add(self, request: Request, *, first: bool = False) -> None:
        """Wait behind, or before, the tenant's other requests."""
        lane = self._lanes.setdefault(self.importance(request), {})
        requests = lane.setdefault(request.tenant, deque())
        if first:
            requests.appendleft(request)
        else:
            requests.append(request)
        self._members.add(request)
        if request.scheduled_at is None:
            self.tokens += request.prompt_len

    def remove(self, request: Request) -> None:
        """A request waits no more."""
        lane = self._lanes[self.importance(request)]
        requests = lane[request.tenant]
        requests.remove(request)
        if not requests:
            del lane[request.tenant]
            # An idle tenant saves nothing up; what it owes is kept as long as it has requests.
            account = self._accounts[request.tenant]
            account.deficit = min(0.0, account.deficit)
        if not lane:
            del self._lanes[self.importance(request)]
        self._members.remove(request)
        if request.scheduled_at is None:
            self.tokens -= request.prompt_len

    def order(self, now: float) -> list[int]:
        """The lanes by their rank now."""
        return sorted(self._lanes, key=lambda priority: self._rank(priority, self._lanes[priority], now))

    def next(self, order: list[int], blocked: Container[Request], sated: Container[str] = ()) -> Request | None:
        """Whose turn it is, but for `blocked` requests, tenants that are `sated`, and what waits for its token."""
        for priority in order:
            heads = [
                head
                for tenant, requests in self._lanes.get(priority, {}).items()
                if tenant not in sated and (head := _head(requests, blocked)) is not None
            ]
            if heads:
                return heads[next_turn((self._accounts[head.tenant], _cost(head)) for head in heads)]
        return None

    def take(self, request: Request) -> None:
        """A request is admitted: it leaves, and its tenant pays."""
        account: Account = self._accounts[request.tenant]
        account.deficit -= _cost(request)
        self.remove(request)

    def _rank(self, priority: int, lane: dict[str, deque[Request]], now: float) -> tuple[int, float]:
        oldest = min(requests[0].arrival for requests in lane.values())
        return priority - int(max(0.0, now - oldest) / self._settings.ageing_seconds), oldest


def _head(requests: deque[Request], blocked: Container[Request]) -> Request | None:
    """The tenant's first request, unless its token is still on the way: nobody of the tenant's passes it for that."""
    for request in requests:
        if request not in blocked:
            return request if request.in_flight == 0 else None
    return None


def _cost(request: Request) -> int:
    """Tokens that admitting a request costs its tenant. What was paid once is not paid again."""
    return request.prompt_len if request.scheduled_at is None and request.fork_of is None else 1
