"""A queue in which owners, such as API keys, take turns, and the one with most in it loses some first.

Otherwise thousands of connections that one client opens at once would delay those of all others by seconds, or leave no
room for them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """At most `most` items, each of an owner."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: OrderedDict[str, deque[T]] = OrderedDict()
        """The items of each owner that has some; the first owner is the one whose turn is next."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return (item for items in self._of.values() for item in items)

    def add(self, owner: str, item: T) -> T | None:
        """Add an item; return the one that is dropped if there are too many, which may be the same."""
        self._of.setdefault(owner, deque()).append(item)
        self._count += 1
        if self._count <= self._most:
            return None
        largest = max(self._of, key=lambda each: len(self._of[each]))
        return self._removed(largest, self._of[largest].pop())

    def take(self) -> T:
        """Remove and return the oldest item of the owner whose turn is next; KeyError if the queue is empty."""
        owner, items = next(iter(self._of.items()), ("", deque[T]()))
        if not items:
            raise KeyError("the queue is empty")
        self._of.move_to_end(owner)
        return self._removed(owner, items.popleft())

    def _removed(self, owner: str, item: T) -> T:
        self._count -= 1
        if not self._of[owner]:
            del self._of[owner]
        return item
