"""What a KV group answers about a request's block table, whatever its kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.request import Request

NO_BLOCK = -1
"""A place of a table whose block is not held (any more)."""


@dataclass(slots=True)
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

    def reach(self, hashes: Sequence[bytes]) -> Collection[int]:
        """The numbers of leading blocks after which a sequence could go on with what the prefix cache has."""

    def adopt(self, hashes: Sequence[bytes]) -> list[int]:
        """A table that begins with the cached blocks under `hashes`, whose number `reach` contained."""

    def remember(self, table: list[int], hashes: Sequence[bytes], first: int, computed: int, owner: Request) -> None:
        """Make the full blocks from `first` on findable under their hashes."""

    def can_fork(self, table: list[int], computed: int, parent_computed: int) -> bool:
        """Whether a fork could go on after `computed` tokens with the blocks of its parent's table."""

    def fork(self, table: list[int], computed: int) -> list[int]:
        """A table of the same blocks for a fork."""

    def restore(self, table: list[int], places: dict[int, int]) -> list[tuple[int, int]]:
        """Complete an adopted table with what was saved: (swap block, new block) of each that must be moved."""

    def unused_slots(self, table: list[int], computed: int) -> int:
        """Slots that are held and hold no token."""


def shared(pool: BlockPool, digest: bytes) -> int:
    """The cached block under `digest`, with one more reference."""
    block = pool.cache.get(digest) if pool.cache is not None else None
    if block is None:
        raise RuntimeError("the prefix cache lost a block between looking and taking")
    pool.share(block)
    return block
