"""The memory of sliding-window attention: only the last tokens are kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups.memory import NO_BLOCK, Copies, GroupMemory


class SlidingMemory(GroupMemory):
    """The memory of a sliding window. Blocks that have left the window are freed: their entries hold `NO_BLOCK`.

    A window of 1 is kept as one of 2: it reads nothing from the cache, so every prefix would count as a hit.
    """

    def __init__(self, pool: BlockPool, block_size: int, window: int, max_chunk: int) -> None:
        super().__init__(pool, block_size)
        self.window = max(2, window)
        self.max_chunk = max_chunk

    def peak(self, tokens: int) -> int:
        """Return the blocks of the window and of one step's tokens, wherever these begin in a block."""
        size = self.block_size
        return min(-(-tokens // size), -(-(self.window - 1) // size) + -(-(self.max_chunk + size - 1) // size))

    def missing(self, table: list[int], start: int, end: int) -> int:
        """Return the blocks to take, less those that have left the window."""
        left = sum(block != NO_BLOCK and self.pool.references(block) == 1 for block in table[: self._kept(start)])
        return super().missing(table, start, end) - left

    def grow(self, table: list[int], start: int, end: int, copies: Copies) -> int:
        """Free the blocks that no later query sees, then take new ones.

        A request that continues this sequence needs only the window before the sequence's last full block, and that is
        kept. Blocks that leave the window help only requests that share less of the sequence: they are evicted first.
        """
        first = min(self._kept(start), len(table))
        self.pool.free((block for block in table[:first] if block != NO_BLOCK), cold=True)
        table[:first] = [NO_BLOCK] * first
        return super().grow(table, start, end, copies)

    def hit_lengths(self, hashes: Sequence[bytes]) -> Collection[int]:
        """Return the numbers of leading blocks at whose end the prefix cache has the whole window, and 0."""
        found, run = {0}, 0
        for number, digest in enumerate(hashes, 1):
            run = run + 1 if self.pool.cache.get(digest) is not None else 0
            if number - run <= self._first(number * self.block_size):
                found.add(number)
        return found

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return a table that begins with the cached blocks of the window alone."""
        first = self._first(len(hashes) * self.block_size)
        return [NO_BLOCK] * first + [self.pool.share_cached(digest) for digest in hashes[first:]]

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Return True if the parent still holds all blocks in the fork's window."""
        return all(block != NO_BLOCK for block in table[self._first(computed) : -(-computed // self.block_size)])

    def _first(self, position: int) -> int:
        """Return the index of the first block that a query at `position` sees."""
        return max(0, position - self.window + 1) // self.block_size

    def _kept(self, position: int) -> int:
        """Return the first block to keep for it: what the start of its own block sees, as a hit may end there."""
        return self._first(position // self.block_size * self.block_size)
