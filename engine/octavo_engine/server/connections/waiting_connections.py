"""The connections that wait for the server's event loop: API keys take turns, and the one with most loses some first.

Otherwise thousands of connections that one client opens at once would delay those of all others by seconds, or leave no
room for them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class WaitingConnections(Generic[T]):
    """At most `most` connections, each of the owner that its first bytes name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        """The connections of each owner that has some; the first owner is the one whose turn is next."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (connection for connections in self._of.values() for connection in connections)

    def add(self, owner: str, connection: T) -> T | None:
        """Add a connection; return the one that has to be closed if there are too many, which may be the same."""
        self._of.setdefault(owner, deque()).append(connection)
        self._count += 1
        if self._count <= self._most:
            return None
        largest = max(self._of, key=lambda each: len(self._of[each]))
        return self._removed(largest, self._of[largest].pop())

    def take(self) -> T:
        """Remove and return the connection whose turn is next; KeyError if there is none."""
        owner, connections = next(iter(self._of.items()), ("", deque[T]()))
        if not connections:
            raise KeyError("no connection waits")
        self._of.move_to_end(owner)
        return self._removed(owner, connections.popleft())

    def _removed(self, owner: str, connection: T) -> T:
        self._count -= 1
        if not self._of[owner]:
            del self._of[owner]
        return connection
