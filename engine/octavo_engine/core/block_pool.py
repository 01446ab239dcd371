"""The block pool: the blocks of one KV group, with reference counts and a list of free ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_engine.core.prefix_cache import PrefixCache


class BlockPool:
    """Blocks 0..n-1, each *free*, *used* (referenced by requests) or *cached* (unreferenced, but in the prefix cache).

    Taking and freeing are O(1) a block. A cached block counts as available: when no free block is left, the eviction
    policy chooses a cached one.
    """

    def __init__(self, num_blocks: int, cache: PrefixCache | None = None) -> None:
        """Start with all blocks free. Without a `cache`, the content of freed blocks is not kept."""
        self.num_blocks = num_blocks
        self.cache = cache or PrefixCache()
        self.reserved = 0  # available blocks that are kept for requests which must not be preempted again
        self.now = 0.0
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    @property
    def available(self) -> int:
        """The number of blocks that `take` can give now, reserved ones included."""
        return len(self._free) + len(self.cache.unused)

    @property
    def unreserved(self) -> int:
        """The number of available blocks that no request has reserved."""
        return len(self._free) + len(self.cache.unused) - self.reserved

    @property
    def used(self) -> int:
        """The number of blocks that requests hold."""
        return self.num_blocks - self.available

    def take(self, count: int) -> list[int]:
        """Take `count` blocks with one reference each. Callers must have checked `available`."""
        blocks = [self._free.pop() if self._free else self.cache.evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a reference to a block that is used or cached."""
        if self._references[block] == 0:
            self.cache.touch(block)
        self._references[block] += 1

    def share_cached(self, digest: bytes) -> int:
        """Add a reference to the cached block under `digest` and return it; RuntimeError if there is none."""
        if (block := self.cache.get(digest)) is None:
            raise RuntimeError("the prefix cache lost a block between looking and taking")
        self.share(block)
        return block

    def must_copy(self, block: int) -> bool:
        """Return True if a write into the block would change what another request or the prefix cache reads."""
        return self._references[block] > 1 or block in self.cache.known

    def references(self, block: int) -> int:
        """Return how many requests hold the block."""
        return self._references[block]

    def free(self, blocks: Iterable[int], *, cold: bool = False) -> None:
        """Drop a reference to each block. The last ones are evicted first, and `cold` ones before all others."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            if self._references[block] > 0:
                continue
            if block in self.cache.known:
                self.cache.release(block, self.now, cold=cold)
            else:
                self._free.append(block)

    def forget(self, digest: bytes, owner: str) -> None:
        """Remove the block under `digest` from the prefix cache if `owner` computed it, even while others use it."""
        if (block := self.cache.get(digest)) is None or self.cache.owner(block) != owner:
            return
        if self._references[block] == 0:
            self.cache.touch(block)
            self._free.append(block)
        self.cache.forget(block)

    def tick(self, now: float) -> None:
        """Set the time, and free the cached blocks that have been unused for too long."""
        self.now = now
        self._free += self.cache.expire(now)

    def check_integrity(self, held: Sequence[int]) -> None:
        """Raise RuntimeError unless free + cached + used = all, and references are `held`'s (with repetitions)."""
        counts = [0] * self.num_blocks
        for block in held:
            counts[block] += 1
        if counts != self._references:
            wrong = [block for block in range(self.num_blocks) if counts[block] != self._references[block]]
            raise RuntimeError(f"blocks {wrong[:8]} have other reference counts than requests hold")
        blocks = [*self._free, *self.cache.unused, *(block for block, count in enumerate(counts) if count)]
        if len(set(blocks)) != len(blocks):
            raise RuntimeError("a block is in two states at once")
        if len(blocks) != self.num_blocks:
            raise RuntimeError(f"{self.num_blocks} blocks, but {len(blocks)} are free, cached or used")
        if self.reserved > self.available:
            raise RuntimeError(f"{self.reserved} blocks are reserved, but {self.available} available")
