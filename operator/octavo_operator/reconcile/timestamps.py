"""Moments as Kubernetes writes them (RFC 3339)."""

from __future__ import annotations

from datetime import datetime


def seconds_between(first: str | None, second: str | None) -> float:
    """Return the seconds from `first` to `second`, both RFC 3339; 0 where one of them is not known."""
    if not first or not second:
        return 0.0
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


def patience_left(since: str, now: str, patience: float) -> list[float]:
    """Return in how many seconds what has waited `since` (RFC 3339; empty: nothing waits) has waited for too long.

    Empty: it has already, or nothing waits. `patience`: the seconds it may wait.
    """
    left = patience - seconds_between(since, now) if since else 0
    return [left] if left > 0 else []
