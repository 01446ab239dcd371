"""Who gives up its blocks when there are not enough for everyone, and whether they are computed anew or swapped.

The victim matters least. Of those that matter as little, it is the one that loses the fewest tokens among those whose
blocks suffice; among equals the one that came last. A request that was preempted `max_preemptions` times is no
candidate any more: it runs again only with all its blocks promised, needs nothing from others and gets to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from octavo_engine.core.fairness import Accounts
from octavo_engine.core.request import Request

Importance = Callable[[Request], int]
"""Low numbers matter most."""
Gain = Callable[[Request], Sequence[int]]
"""Blocks of each KV group that others could have if the request gave up its own."""


def choose_victim(candidates: Iterable[Request], importance: Importance, gain: Gain, needed: int) -> Request:
    """Whom to preempt when `needed` blocks of some group are missing; ValueError without candidates."""
    requests = list(candidates)
    least = max(map(importance, requests))
    ordered = sorted((request for request in requests if importance(request) == least), key=_loss)
    return next((request for request in ordered if min(gain(request)) >= needed), ordered[0])


def choose_victims(
    candidates: Iterable[Request], importance: Importance, gain: Gain, needed: Sequence[int]
) -> list[Request]:
    """Whom to preempt, one or more, to gain `needed` blocks of each group; nobody if all together would not do."""
    victims: list[Request] = []
    for request in sorted(candidates, key=lambda request: (-importance(request), *_loss(request))):
        victims.append(request)
        needed = [missing - gained for missing, gained in zip(needed, gain(request), strict=True)]
        if max(needed) <= 0:
            return victims
    return []


def yielding_to(
    waiting: Request,
    running: Iterable[Request],
    importance: Importance,
    accounts: Accounts,
    share_of: Callable[[Request], float],
) -> list[Request]:
    """Who gives way to a waiting request: what matters less, and what a tenant holds beyond its share of the engine.

    The one that comes must stay within its own tenant's share. So nobody can take back what was taken this way.
    """
    requests, ours = list(running), importance(waiting)
    held = {waiting.tenant: share_of(waiting)}
    for request in requests:
        held[request.tenant] = held.get(request.tenant, 0.0) + share_of(request)
    over = {tenant for tenant, share in held.items() if share > accounts.share(tenant)}
    if waiting.tenant in over:
        over = set()
    return [
        request
        for request in requests
        if ours < importance(request) or (ours == importance(request) and request.tenant in over)
    ]


def _loss(request: Request) -> tuple[int, float, str]:
    return (request.computed, -request.arrival, request.request_id)


def swap_is_cheaper(blocks: int, block_seconds: float, tokens: int, token_seconds: float) -> bool:
    """Whether moving `blocks` out and in again takes less time than computing `tokens` again.

    Both rates are measured: a block's copies when the engine starts, a token's share of a prefill step as steps run.
    That some of the tokens may be found in the prefix cache later is not counted.
    """
    return blocks * block_seconds < tokens * token_seconds
