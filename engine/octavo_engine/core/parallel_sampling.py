"""Parallel sampling (n > 1): the other choices wait until the first one's prompt is computed, then share its blocks."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState, Status


def begins_as(state: RequestState, parent: RequestState | None) -> bool:
    """Whether `parent` is still here, and `state` may share what it computes of its prompt."""
    return (
        parent is not None
        and parent.token_ids[: state.prompt_len] == state.token_ids
        and _cache_scope(parent.request) == _cache_scope(state.request)
    )


def _cache_scope(request: Request) -> tuple[str, str, str]:
    return (request.tenant, request.cache_salt, request.adapter)


class WaitingForks:
    """Requests that wait for another's prompt rather than for a seat."""

    def __init__(self) -> None:
        self._by_parent: dict[str, list[RequestState]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_parent.values()))

    def add(self, state: RequestState) -> None:
        """Let a request wait for the prompt of its `fork_of`."""
        state.status = Status.FORKING
        self._by_parent.setdefault(state.fork_of or "", []).append(state)

    def remove(self, state: RequestState) -> None:
        """A request that waits here has ended."""
        self._by_parent[state.fork_of or ""].remove(state)

    def take_ready(self, requests: Mapping[str, RequestState]) -> list[RequestState]:
        """Remove and return those that wait no more: their parent's prompt is computed, or it has left `requests`.

        The forks of one parent come in reverse, as each is to be put before those that wait for a seat.
        """
        ready_forks: list[RequestState] = []
        for parent_id, forks in list(self._by_parent.items()):
            parent = requests.get(parent_id)
            ready = [fork for fork in forks if parent is None or parent.computed >= fork.prompt_len - 1]
            for fork in ready:
                fork.fork_of = parent_id if parent is not None else None
            ready_forks += reversed(ready)
            if len(ready) == len(forks):
                del self._by_parent[parent_id]
            else:
                self._by_parent[parent_id] = [fork for fork in forks if fork not in ready]
        return ready_forks
