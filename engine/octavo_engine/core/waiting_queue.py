"""The queue of waiting requests, and the order in which they are tried.

A *lane* holds the requests of one priority (there is only one under `fcfs`). Lanes are served in the order of their
priority, but a lane moves up one level for every `ageing_seconds` its oldest request has waited, so that no request
waits for ever. Inside a lane tenants take turns by deficit round robin; inside a tenant it is first come, first served,
except that preempted requests and forks come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from octavo_engine.core.fairness import Accounts, next_turn
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.settings import SchedulerSettings


class WaitingQueue:
    """All waiting requests. `next` proposes one; `take` removes it."""

    def __init__(self, settings: SchedulerSettings, accounts: Accounts) -> None:
        self._settings = settings
        self._accounts = accounts
        self._lanes: dict[int, dict[str, deque[RequestState]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def lane(self, state: RequestState) -> int:
        """Return the lane of a request; low numbers are more important."""
        return state.request.priority if self._settings.policy == "priority" else 0

    def level(self, state: RequestState, now: float) -> int:
        """Return a request's lane less one for each `ageing_seconds` since its arrival; low is more important."""
        return self._aged(self.lane(state), state.arrival, now)

    def levels(self, now: float) -> dict[int, int]:
        """Return the level of the oldest request of each lane that is not empty."""
        return {priority: self._rank(priority, lane, now)[0] for priority, lane in self._lanes.items()}

    def add(self, state: RequestState, *, first: bool = False) -> None:
        """Queue a request behind, or with `first` ahead of, its tenant's other requests."""
        lane = self._lanes.setdefault(self.lane(state), {})
        requests = lane.setdefault(state.tenant, deque())
        if first:
            requests.appendleft(state)
        else:
            requests.append(state)
        self._length += 1

    def remove(self, state: RequestState) -> None:
        """Remove a request from the queue."""
        number = self.lane(state)
        lane = self._lanes[number]
        requests = lane[state.tenant]
        requests.remove(state)
        if not requests:
            del lane[state.tenant]
            # A tenant that waits for nothing saves up no credit, but keeps its debt.
            account = self._accounts[state.tenant]
            account.deficit = min(0.0, account.deficit)
        if not lane:
            del self._lanes[number]
        self._length -= 1

    def order(self, now: float) -> list[int]:
        """Return the lanes in the order in which they are served now."""
        return sorted(self._lanes, key=lambda priority: self._rank(priority, self._lanes[priority], now))

    def next(
        self, order: list[int], blocked: Callable[[RequestState], bool], over_share: Container[str] = ()
    ) -> RequestState | None:
        """Return the next request in turn that is not `blocked` and whose tenant is not in `over_share`, or None."""
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
        """Remove a request that is admitted, and charge its tenant."""
        self._accounts[state.tenant].deficit -= _cost(state)
        self.remove(state)

    def _rank(self, priority: int, lane: dict[str, deque[RequestState]], now: float) -> tuple[int, float]:
        oldest = min(requests[0].arrival for requests in lane.values())
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
