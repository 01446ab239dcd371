# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Recurrent layers: one state is kept, and checkpoints of it at block boundaries."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups.memory import Growth, shared
from octavo_engine.core.request import Request


class RecurrentMemory:
    """One state a request, in place 0 of its table, as of its last computed token.

    At a block boundary the state becomes a checkpoint: the prefix cache knows it, and going on means copying it first.
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

    def peak(self, tokens: int) -> int:
        """The state, and the one it is copied from."""
        return 2

    def missing(self, table: list[int], start: int, end: int) -> int:
        """1 for the first token, and whenever the state must be copied."""
        return int(not table or self.pool.must_copy(table[0]))

    def grow(self, table: list[int], start: int, end: int) -> Growth | None:
        """A first state, or a copy of one that must stay as it is."""
        if not self.missing(table, start, end):
            return None
        new = self.pool.take(1)
        copied = (table[0], new[0]) if table else None
        self.pool.give_back(table)
        table[:] = new
        return Growth(0, tuple(new), copied)

    def capacity(self, table: list[int], computed: int) -> int:
        """Up to the next block boundary, where a checkpoint may be left."""
        if not table or self.pool.must_copy(table[0]):
            return computed
        return -(-computed // self.block_size) * self.block_size

    def reach(self, hashes: Sequence[bytes]) -> Collection[int]:
        """Wherever there is a checkpoint."""
        cache = self.pool.cache
        if cache is None:
            return range(1)
        return {0} | {number for number, digest in enumerate(hashes, 1) if cache.get(digest) is not None}

    def adopt(self, hashes: Sequence[bytes]) -> list[int]:
        """The last checkpoint."""
        return [shared(self.pool, hashes[-1])] if hashes else []

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request) -> None:
        """The state, if it is that of a block boundary."""
        if self.pool.cache is not None and table and computed == len(hashes) * self.block_size:
            self.pool.cache.remember(hashes[-1], table[0], owner)

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Only from where the parent stands now."""
        return computed == parent_computed

    def fork(self, table: list[int], computed: int) -> list[int]:
        """The state; whoever goes on first copies it."""
        for block in table:
            self.pool.share(block)
        return list(table)

    def restore(self, table: list[int], places: dict[int, int]) -> list[tuple[int, int]]:
        """The saved state, whatever checkpoint was found: that is older."""
        self.pool.give_back(table)
        table[:] = self.pool.take(1)
        return [(places[0], table[0])]

    def unused_slots(self, table: list[int], computed: int) -> int:
        """A state has no slots for tokens."""
        return 0
