# ruff: noqa: ARG002  (one interface for all kinds: not each needs every argument)
"""KV groups: layers that keep their past in the same way share one pool of blocks and one block table a request.

Full attention keeps every token, a sliding window the last ones, a recurrent layer one state. Each kind answers the
same few questions about a request's table: what it must get for its next tokens, what a beginning that others computed
is worth, what can be shared with a fork. A place of a table whose block is not held (any more) is `NO_BLOCK`.

A block that somebody else can see, or that the prefix cache knows, is never written: it is copied first.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from octavo_engine.core.block_pool import BlockPool

NO_BLOCK = -1


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose blocks are allocated together."""

    num_blocks: int
    kind: Literal["full", "sliding", "recurrent"] = "full"
    window: int | None = None
    """Tokens that a query sees, its own included (sliding)."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a table has changed: `blocks` stand in it from `index` on; `copied` was (source, target)."""

    index: int
    blocks: tuple[int, ...]
    copied: tuple[int, int] | None = None


class GroupMemory(Protocol):
    """What `KVMemory` asks of each group. Tables are changed in place."""

    pool: BlockPool

    def peak(self, tokens: int) -> int:
        """The most blocks that a sequence of so many tokens holds at once."""

    def missing(self, table: list[int], start: int, end: int) -> int:
        """Blocks to take before the tokens at `start` to `end` can be computed, less those that are given back."""

    def grow(self, table: list[int], start: int, end: int) -> Growth | None:
        """Take them; None if nothing changes. The caller has looked at `missing`."""

    def capacity(self, table: list[int], computed: int) -> int:
        """Tokens that can be computed before the table must be looked at again."""

    def reach(self, hashes: Sequence[bytes]) -> Container[int]:
        """The numbers of leading blocks after which a sequence could go on with what the prefix cache has."""

    def adopt(self, hashes: Sequence[bytes], priority: int) -> list[int]:
        """A table that begins with the cached blocks under `hashes`, whose number `reach` contained."""

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, priority: int) -> None:
        """Make the full blocks from `first` on findable under their hashes."""

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Whether a fork could go on after `computed` tokens with the blocks of its parent's table."""

    def fork(self, table: list[int], computed: int, priority: int) -> list[int]:
        """A table of the same blocks for a fork."""

    def restore(self, table: list[int], places: dict[int, int]) -> list[tuple[int, int]]:
        """Complete an adopted table with what was saved: (swap block, new block) of each that must be moved."""

    def unused_slots(self, table: list[int], computed: int) -> int:
        """Slots that are held and hold no token."""


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

    def reach(self, hashes: Sequence[bytes]) -> Container[int]:
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

    def adopt(self, hashes: Sequence[bytes], priority: int) -> list[int]:
        """All of them."""
        return [_shared(self.pool, digest, priority) for digest in hashes]

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, priority: int) -> None:
        """Make the full blocks from `first` on findable under their hashes."""
        if self.pool.cache is not None:
            for index in range(first, len(hashes)):
                if table[index] != NO_BLOCK:
                    self.pool.cache.remember(hashes[index], table[index], priority)

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Always: whatever the parent has computed is there."""
        return True

    def fork(self, table: list[int], computed: int, priority: int) -> list[int]:
        """The blocks that hold its tokens; the last one may be copied later."""
        blocks = table[: -(-computed // self.block_size)]
        for block in blocks:
            if block != NO_BLOCK:
                self.pool.share(block, priority)
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


class SlidingMemory(FullMemory):
    """As full attention, but what has left the window is given back: its places hold `NO_BLOCK`."""

    def __init__(self, pool: BlockPool, block_size: int, window: int, max_chunk: int) -> None:
        super().__init__(pool, block_size)
        self.window = window
        self.max_chunk = max_chunk

    def peak(self, tokens: int) -> int:
        """The window and one step's tokens, wherever they begin in a block."""
        return -(-min(tokens, self.window + self.max_chunk + self.block_size) // self.block_size)

    def missing(self, table: list[int], start: int, end: int) -> int:
        """Blocks to take, less those that have left the window."""
        left = sum(block != NO_BLOCK and self.pool.references(block) == 1 for block in table[: self._first(start)])
        return super().missing(table, start, end) - left

    def grow(self, table: list[int], start: int, end: int) -> Growth | None:
        """Give back what no query sees any more, then take."""
        first = min(self._first(start), len(table))
        self.pool.give_back(block for block in table[:first] if block != NO_BLOCK)
        table[:first] = [NO_BLOCK] * first
        return super().grow(table, start, end)

    def reach(self, hashes: Sequence[bytes]) -> Container[int]:
        """Numbers before which the whole window is known."""
        cache = self.pool.cache
        if cache is None:
            return range(1)
        found, run = {0}, 0
        for number, digest in enumerate(hashes, 1):
            run = run + 1 if cache.get(digest) is not None else 0
            if number - run <= self._first(number * self.block_size):
                found.add(number)
        return found

    def adopt(self, hashes: Sequence[bytes], priority: int) -> list[int]:
        """The window's blocks only."""
        first = self._first(len(hashes) * self.block_size)
        return [NO_BLOCK] * first + [_shared(self.pool, digest, priority) for digest in hashes[first:]]

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Unless the parent has given back what the fork still sees."""
        return all(block != NO_BLOCK for block in table[self._first(computed) : -(-computed // self.block_size)])

    def unused_slots(self, table: list[int], computed: int) -> int:
        """What the last block has left."""
        return max(0, len(table) * self.block_size - computed)

    def _first(self, position: int) -> int:
        """The first block that a query at `position` sees."""
        return max(0, position - self.window + 1) // self.block_size


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

    def reach(self, hashes: Sequence[bytes]) -> Container[int]:
        """Wherever there is a checkpoint."""
        cache = self.pool.cache
        if cache is None:
            return range(1)
        return {0} | {number for number, digest in enumerate(hashes, 1) if cache.get(digest) is not None}

    def adopt(self, hashes: Sequence[bytes], priority: int) -> list[int]:
        """The last checkpoint."""
        return [_shared(self.pool, hashes[-1], priority)] if hashes else []

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, priority: int) -> None:
        """The state, if it is that of a block boundary."""
        if self.pool.cache is not None and table and computed == len(hashes) * self.block_size:
            self.pool.cache.remember(hashes[-1], table[0], priority)

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Only from where the parent stands now."""
        return computed == parent_computed

    def fork(self, table: list[int], computed: int, priority: int) -> list[int]:
        """The state; whoever goes on first copies it."""
        for block in table:
            self.pool.share(block, priority)
        return list(table)

    def restore(self, table: list[int], places: dict[int, int]) -> list[tuple[int, int]]:
        """The saved state, whatever checkpoint was found: that is older."""
        self.pool.give_back(table)
        table[:] = self.pool.take(1)
        return [(places[0], table[0])]

    def unused_slots(self, table: list[int], computed: int) -> int:
        """A state has no slots for tokens."""
        return 0


def group_memory(group: KVGroup, pool: BlockPool, block_size: int, max_chunk: int) -> GroupMemory:
    """The memory of a group's kind."""
    if group.kind == "recurrent":
        return RecurrentMemory(pool, block_size)
    if group.kind == "sliding":
        if group.window is None:
            raise ValueError("a sliding group needs its window")
        return SlidingMemory(pool, block_size, group.window, max_chunk)
    return FullMemory(pool, block_size)


def _shared(pool: BlockPool, digest: bytes, priority: int) -> int:
    block = pool.cache.get(digest) if pool.cache is not None else None
    if block is None:
        raise RuntimeError("the prefix cache lost a block between looking and taking")
    pool.share(block, priority)
    return block
