# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""Full attention: every token is kept."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups.memory import NO_BLOCK, Growth, shared
from octavo_engine.core.request import Request


class FullMemory:
    """Every token's keys and values are kept: place i of the table holds tokens i * B to (i + 1) * B."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size

    def peak(self, tokens: int) -> int:
        """The most blocks that a sequence of so many tokens holds at once."""
        return -(-tokens // self.block_size)

    def missing(self, table: list[int], start: int, end: int) -> int:
        """Blocks to take before the tokens at `start` to `end` can be computed."""
        return max(0, -(-end // self.block_size) - len(table)) + self._copies(table, start)

    def grow(self, table: list[int], start: int, end: int) -> Growth | None:
        """Take them; None if nothing changes."""
        copied = None
        index = len(table)
        if self._copies(table, start):
            index -= 1  # only the last block of a table is not full
            copied = (table[index], self.pool.take(1)[0])
            self.pool.give_back(table[index:])
            table[index] = copied[1]
        table += self.pool.take(max(0, -(-end // self.block_size) - len(table)))
        return Growth(index, tuple(table[index:]), copied) if index < len(table) else None

    def capacity(self, table: list[int], computed: int) -> int:
        """Tokens that fit into the blocks, or none while the next one's block must be copied."""
        return computed if self._copies(table, computed) else len(table) * self.block_size

    def reach(self, hashes: Sequence[bytes]) -> Collection[int]:
        """Any number up to the first block that is not known."""
        cache = self.pool.cache
        if cache is None:
            return range(1)
        known = 0
        for digest in hashes:
            if cache.get(digest) is None:
                break
            known += 1
        return range(known + 1)

    def adopt(self, hashes: Sequence[bytes]) -> list[int]:
        """All of them."""
        return [shared(self.pool, digest) for digest in hashes]

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request) -> None:
        """Make the full blocks from `first` on findable under their hashes."""
        if self.pool.cache is not None:
            for index in range(first, len(hashes)):
                if table[index] != NO_BLOCK:
                    self.pool.cache.remember(hashes[index], table[index], owner)

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Always: whatever the parent has computed is there."""
        return True

    def fork(self, table: list[int], computed: int) -> list[int]:
        """The blocks that hold its tokens; the last one may be copied later."""
        blocks = table[: -(-computed // self.block_size)]
        for block in blocks:
            if block != NO_BLOCK:
                self.pool.share(block)
        return blocks

    def restore(self, table: list[int], places: dict[int, int]) -> list[tuple[int, int]]:
        """What the prefix cache still had stays; the places after it come from the swap space."""
        moves = []
        for place in range(len(table), max(places) + 1):
            block = self.pool.take(1)[0] if place in places else NO_BLOCK
            table.append(block)
            if place in places:
                moves.append((places[place], block))
        return moves

    def unused_slots(self, table: list[int], computed: int) -> int:
        """What the last block has left."""
        return len(table) * self.block_size - computed

    def _copies(self, table: list[int], start: int) -> int:
        """1 if the block of the token at `start` is there and must be copied before it is written."""
        index = start // self.block_size
        return int(index < len(table) and self.pool.must_copy(table[index]))
