"""The requests that wait, and which one is next.

A *lane* holds the requests of one priority (there is only one under `fcfs`). Lanes are served in the order of their
priority, but a lane moves up one level for every `ageing_seconds` its oldest request has waited: nothing waits for
ever. Inside a lane tenants take turns by deficit round robin; inside a tenant it is first come, first served, except
that requests which had already run (preempted ones, forks) come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from octavo_engine.core.fairness import Account, Accounts, next_turn
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.settings import SchedulerSettings


class WaitingQueue:
    """All waiting requests. `next` proposes one; `take` removes it."""

    def __init__(self, settings: SchedulerSettings, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._lanes: dict[int, dict[str, deque[RequestState]]] = {}
        self._length = 0
        self.tokens = 0  # prompt tokens of the requests that have never run

    def __len__(self) -> int:
        return self._length

    def lane(self, state: RequestState) -> int:
        """The lane a request belongs to; low numbers matter most."""
        return state.request.priority if self._settings.policy == "priority" else 0

    def level(self, state: RequestState, now: float) -> int:
        """A request's lane less one for every ageing time since its arrival; low numbers matter most."""
        return self._aged(self.lane(state), state.arrival, now)

    def levels(self, now: float) -> dict[int, int]:
        """Return the level of the oldest request of each lane that is not empty."""
        return {priority: self._rank(priority, lane, now)[0] for priority, lane in self._lanes.items()}

    def add(self, state: RequestState, *, first: bool = False) -> None:
        """Wait behind, or before, the tenant's other requests."""
        lane = self._lanes.setdefault(self.lane(state), {})
        requests = lane.setdefault(state.tenant, deque())
        if first:
            requests.appendleft(state)
        else:
            requests.append(state)
        self._length += 1
        if state.scheduled_at is None:
            self.tokens += state.prompt_len

    def remove(self, state: RequestState) -> None:
        """A request waits no more."""
        number = self.lane(state)
        lane = self._lanes[number]
        requests = lane[state.tenant]
        requests.remove(state)
        if not requests:
            del lane[state.tenant]
            # An idle tenant saves nothing up; what it owes is kept for as long as it has requests.
            account = self._accounts[state.tenant]
            account.deficit = min(0.0, account.deficit)
        if not lane:
            del self._lanes[number]
        self._length -= 1
        if state.scheduled_at is None:
            self.tokens -= state.prompt_len

    def order(self, now: float) -> list[int]:
        """The lanes by their rank now."""
        return sorted(self._lanes, key=lambda priority: self._rank(priority, self._lanes[priority], now))

    def next(
        self, order: list[int], blocked: Callable[[RequestState], bool], over_share: Container[str] = ()
    ) -> RequestState | None:
        """The request whose turn it is, without those `blocked` and of tenants `over_share`, or still due a token."""
        for priority in order:
            heads = [
                head
                for tenant, requests in self._lanes.get(priority, {}).items()
                if tenant not in over_share and (head := _head(requests, blocked)) is not None
            ]
            if heads:
                return heads[next_turn((self._accounts[head.tenant], _cost(head)) for head in heads)]
        return None

    def take(self, state: RequestState) -> None:
        """A request is admitted: it leaves, and its tenant pays."""
        account: Account = self._accounts[state.tenant]
        account.deficit -= _cost(state)
        self.remove(state)

    def _rank(self, priority: int, lane: dict[str, deque[RequestState]], now: float) -> tuple[int, float]:
        oldest = min(requests[0].arrival for requests in lane.values())
        return self._aged(priority, oldest, now), oldest

    def _aged(self, priority: int, arrival: float, now: float) -> int:
        return priority - int(max(0.0, now - arrival) / self._settings.ageing_seconds)


def _head(requests: deque[RequestState], blocked: Callable[[RequestState], bool]) -> RequestState | None:
    """The tenant's first request, unless its token is still on the way: then the tenant's others wait as well."""
    for state in requests:
        if not blocked(state):
            return state if state.in_flight == 0 else None
    return None


def _cost(state: RequestState) -> int:
    """Tokens that admitting a request costs its tenant. What was paid once is not paid again."""
    return state.prompt_len if state.scheduled_at is None and state.fork_of is None else 1
