"""Recurrent layers: one state is kept, and snapshots of it at block boundaries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.kv_groups.memory import Copies, GroupMemory
from octavo_engine.core.request import Request


class RecurrentMemory(GroupMemory):
    """One state a request, in entry 0 of its table, as of its last computed token.

    At a block boundary the state becomes a snapshot: the prefix cache knows it, and going on means copying it first.
    Once a request leaves its next snapshot, the one before it is evicted first, unless it was wanted or found. Its
    last one stays, where the next turn goes on, so that a few blocks for each conversation are enough.
    """

    def peak(self, tokens: int) -> int:
        return 2  # the state, and the one it is copied from

    def missing(self, table: list[int], start: int, end: int) -> int:
        return int(not table or self.pool.must_copy(table[0]))

    def grow(self, table: list[int], start: int, end: int, copies: Copies) -> int:
        """Take a first state, or a copy of one that must stay as it is."""
        if not self.missing(table, start, end):
            return len(table)
        new = self.pool.take(1)
        copies += [(block, new[0]) for block in table]
        self.pool.free(table)
        table[:] = new
        return 0

    def capacity(self, table: list[int], computed: int) -> int:
        """Tokens up to the next block boundary, where a snapshot may be left."""
        if not table or self.pool.must_copy(table[0]):
            return computed
        return -(-computed // self.block_size) * self.block_size

    def hit_lengths(self, hashes: Sequence[bytes]) -> Collection[int]:
        """The numbers of blocks after which there is a snapshot."""
        return {0} | {number for number, digest in enumerate(hashes, 1) if self.pool.cache.get(digest) is not None}

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        return [self.pool.share_cached(hashes[-1])] if hashes else []

    def cache_blocks(
        self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request, *, wanted: bool
    ) -> None:
        """Make the state findable, if it is that of a block boundary."""
        if table and computed == len(hashes) * self.block_size:
            self.pool.cache.insert(hashes[-1], table[0], owner, wanted=wanted)
            if first:
                self.pool.cache.cool(hashes[first - 1])

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        return computed == parent_computed  # there is no earlier state

    def fork(self, table: list[int], computed: int) -> list[int]:
        """The same state; the first of the two that goes on copies it."""
        for block in table:
            self.pool.share(block)
        return list(table)

    def restore(self, table: list[int], entries: dict[int, int]) -> list[tuple[int, int]]:
        """The saved state instead of a snapshot that was matched, which is older."""
        self.pool.free(table)
        table[:] = self.pool.take(1)
        return [(entries[0], table[0])]

    def unused_slots(self, table: list[int], computed: int) -> int:
        return 0  # a state has no slots for tokens
