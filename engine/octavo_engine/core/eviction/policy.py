"""What an eviction policy is: an order of the blocks that are cached and in no request's use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """The unused blocks, in the order in which they go."""

    def release(self, block: int, uses: int, priority: int) -> None:
        """A block is unused from now on. It was found `uses` times; its most important user had `priority`."""

    def remove(self, block: int) -> None:
        """An unused block is used again, or forgotten."""

    def evict(self) -> int:
        """Remove the block that goes first, and return it."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...
