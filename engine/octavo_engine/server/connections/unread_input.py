"""Limits the bytes that clients have sent and that no request has read yet, for all connections of one event loop."""

from __future__ import annotations

MOST_UNREAD = 32 << 20
"""Bytes of all connections together. A request reads them as soon as its turn comes, so that few are usual."""
SMALL = 16 << 10
"""Bytes that a connection may always have."""


class UnreadInput:
    """The count of these bytes. A client's first read may bring 256 KiB, and thousands may send at the same moment."""

    def __init__(self) -> None:
        self.total = 0

    def change(self, before: int, now: int) -> bool:
        """Count a connection that had `before` bytes and has `now`; return False if that is too much."""
        self.total += now - before
        return now <= max(before, SMALL) or self.total <= MOST_UNREAD
