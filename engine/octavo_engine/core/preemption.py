"""Preemption: chooses the requests that free their blocks.

The victim is the least important request. Of equally important ones it is the one that loses the fewest tokens among
those whose blocks suffice; among equals the one that came last. A request that was preempted `max_preemptions` times is
no candidate any more: it runs again only with all its blocks reserved, and thus gets to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from octavo_engine.core.request_state import RequestState

Importance = Callable[[RequestState], int]  # low numbers are more important
Gain = Callable[[RequestState], Sequence[int]]
"""Blocks of each KV group that would become available if the request freed its own."""


def choose_victim(requests: Sequence[RequestState], importance: Importance, gain: Gain, needed: int) -> RequestState:
    """Return the request to preempt when `needed` blocks of some group are missing; ValueError without requests."""
    least = max(map(importance, requests))
    ordered = sorted((state for state in requests if importance(state) == least), key=_loss)
    return next((state for state in ordered if min(gain(state)) >= needed), ordered[0])


def choose_victims(
    candidates: Iterable[RequestState], importance: Importance, gain: Gain, needed: Sequence[int]
) -> list[RequestState]:
    """Return the requests to preempt to gain `needed` blocks of each group; none if all together are too few."""
    victims: list[RequestState] = []
    for state in sorted(candidates, key=lambda state: (-importance(state), *_loss(state))):
        victims.append(state)
        needed = [missing - gained for missing, gained in zip(needed, gain(state), strict=True)]
        if max(needed) <= 0:
            return victims
    return []


def _loss(state: RequestState) -> tuple[int, float, str]:
    return (state.computed, -state.arrival, state.request_id)
