"""The memory of recurrent layers: one state per request, and snapshots of it at block boundaries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.kv_groups.memory import Copies, GroupMemory
from octavo_engine.core.request import Request


class RecurrentMemory(GroupMemory):
    """The memory of one state per request, in entry 0 of its table, as of its last computed token.

    At a block boundary the state becomes a snapshot: the prefix cache knows it, and it is copied before it changes.
    When a request saves its next snapshot, its previous one may be evicted early, unless it is wanted or was a hit. The
    last snapshot stays for the conversation's next turn, so a few blocks for each conversation are enough.
    """

    def peak(self, tokens: int) -> int:
        return 2  # the state, and the snapshot that it is copied from

    def missing(self, table: list[int], start: int, end: int) -> int:
        return int(not table or self.pool.must_copy(table[0]))

    def grow(self, table: list[int], start: int, end: int, copies: Copies) -> int:
        """Take a block for a new state, or for a copy of one that must not change."""
        if not self.missing(table, start, end):
            return len(table)
        new = self.pool.take(1)
        copies += [(block, new[0]) for block in table]
        self.pool.free(table)
        table[:] = new
        return 0

    def capacity(self, table: list[int], computed: int) -> int:
        """Return the token count of the next block boundary, where a snapshot may be saved."""
        if not table or self.pool.must_copy(table[0]):
            return computed
        return -(-computed // self.block_size) * self.block_size

    def hit_lengths(self, hashes: Sequence[bytes]) -> Collection[int]:
        """Return the numbers of leading blocks after which there is a snapshot, and 0."""
        return {0} | {number for number, digest in enumerate(hashes, 1) if self.pool.cache.get(digest) is not None}

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        return [self.pool.share_cached(hashes[-1])] if hashes else []

    def cache_blocks(
        self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request, *, wanted: bool
    ) -> None:
        """Put the state into the prefix cache as a snapshot, if `computed` is a block boundary."""
        if table and computed == len(hashes) * self.block_size:
            self.pool.cache.insert(hashes[-1], table[0], owner, wanted=wanted)
            if first:
                self.pool.cache.cool(hashes[first - 1])

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        return computed == parent_computed  # no earlier state; the first of both to go on copies it

    def restore(self, table: list[int], entries: dict[int, int]) -> list[tuple[int, int]]:
        """Take a block for the swapped-out state, in place of a matched snapshot, which is older."""
        self.pool.free(table)
        table[:] = self.pool.take(1)
        return [(entries[0], table[0])]
