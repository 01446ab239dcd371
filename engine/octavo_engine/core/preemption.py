"""Who gives up its blocks when there are not enough for everyone."""

from __future__ import annotations

from collections.abc import Iterable

from octavo_engine.core.request import Request


def choose_victim(running: Iterable[Request]) -> Request:
    """The request that matters least and came last.

    The oldest is thus never preempted by a younger one, always gets on, and ends: there can be no livelock as long as
    every admitted request fits into the empty pool.
    """
    return max(running, key=lambda request: (request.priority, request.arrival, request.request_id))
