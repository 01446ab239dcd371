"""Moments as Kubernetes writes them (RFC 3339)."""

from __future__ import annotations

from datetime import datetime


def seconds_between(first: str | None, second: str | None) -> float:
    """Return the seconds from `first` to `second`, both RFC 3339; 0 where one of them is not known."""
    if not first or not second:
        return 0.0
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()
