"""Blocks in CPU memory for what preempted requests had computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class SwapSpace:
    """The blocks of one KV group's swap space, 0..n-1. Nothing is shared here."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def available(self) -> int:
        """Blocks that can be taken."""
        return len(self._free)

    def take(self) -> int:
        """A block. The caller has looked at `available`."""
        return self._free.pop()

    def give_back(self, blocks: Iterable[int]) -> None:
        """What they held is needed no more."""
        self._free.extend(blocks)

    def check_integrity(self, held: Sequence[int]) -> None:
        """RuntimeError unless every block is free or held exactly once."""
        if sorted([*self._free, *held]) != list(range(self.num_blocks)):
            raise RuntimeError("a block of the swap space is lost or held twice")
