"""The memory of a KV group: the operations on a request's block table, here for full attention."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.request import Request

NO_BLOCK = -1  # an entry of a table whose block is not held (any more)
Copies = list[tuple[int, int]]  # (source, target) of blocks that are copied before a step computes


def held(table: Sequence[int]) -> int:
    """Return the number of blocks that a table holds."""
    return len(table) - table.count(NO_BLOCK)


class GroupMemory:
    """The blocks of a KV group that keeps every token: entry i of a table holds tokens i * B to (i + 1) * B.

    Tables are lists of block ids, changed in place. Subclasses keep only the last tokens, or a state instead of them.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

    def peak(self, tokens: int) -> int:
        """Return the most blocks that a sequence of this many tokens holds at once."""
        return -(-tokens // self.block_size)

    def missing(self, table: list[int], start: int, end: int) -> int:
        """Return how many blocks computing tokens `start` to `end` takes, less those that it frees."""
        return max(0, -(-end // self.block_size) - len(table)) + self._copies(table, start)

    def grow(self, table: list[int], start: int, end: int, copies: Copies) -> int:
        """Take the missing blocks; return the first changed entry of the table. Callers must have checked `missing`."""
        index = len(table)
        if self._copies(table, start):
            index = start // self.block_size  # later blocks hold only rejected drafts
            copies.append((table[index], self.pool.take(1)[0]))
            self.pool.free(table[index : index + 1])
            table[index] = copies[-1][1]
        table += self.pool.take(max(0, -(-end // self.block_size) - len(table)))
        return index

    def capacity(self, table: list[int], computed: int) -> int:
        """Return how many tokens the table allows in all before it must grow or a block be copied."""
        return computed if self._copies(table, computed) else len(table) * self.block_size

    def hit_lengths(self, hashes: Sequence[bytes]) -> Collection[int]:
        """Return the numbers of leading blocks that the prefix cache can give so that a sequence goes on after them."""
        unknown = (number for number, digest in enumerate(hashes) if self.pool.cache.get(digest) is None)
        return range(next(unknown, len(hashes)) + 1)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """Return a table that begins with the cached blocks under `hashes`, whose number is in `hit_lengths`."""
        return [self.pool.share_cached(digest) for digest in hashes]

    def cache_blocks(
        self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request, *, wanted: bool
    ) -> None:
        """Cache the blocks from `first` on, which `owner` computed; `wanted`: others go on from `computed` tokens."""
        for index in range(first, len(hashes)):
            if table[index] != NO_BLOCK:
                self.pool.cache.insert(hashes[index], table[index], owner)

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Return True if a fork can go on after `computed` tokens with the blocks of its parent's table."""
        return True

    def fork(self, table: list[int], computed: int) -> list[int]:
        """Return a table of the same blocks for a fork; the last one may be copied later."""
        blocks = table[: -(-computed // self.block_size)]
        for block in blocks:
            if block != NO_BLOCK:
                self.pool.share(block)
        return blocks

    def restore(self, table: list[int], entries: dict[int, int]) -> list[tuple[int, int]]:
        """Complete a table with swapped-out blocks; return (swap block, new block) of each that must be moved."""
        new = range(len(table), max(entries) + 1)
        table += [self.pool.take(1)[0] if entry in entries else NO_BLOCK for entry in new]
        return [(entries[entry], table[entry]) for entry in new if entry in entries]

    def _copies(self, table: list[int], start: int) -> int:
        """Return 1 if the table has a block for the token at `start` that must be copied before a write, else 0."""
        index = start // self.block_size
        return int(index < len(table) and self.pool.must_copy(table[index]))
