"""A request's KV memory over all groups: how much it needs, takes, shares and gives back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.prefix_cache import PrefixCache, chain_hash, root_hash
from octavo_engine.core.request import Request


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose blocks are allocated together. Today every group keeps all tokens (`full`)."""

    num_blocks: int
    kind: str = "full"


class KVMemory:
    """The block pools of all groups, seen as one memory for sequences of tokens."""

    def __init__(self, groups: Sequence[KVGroup], block_size: int, *, prefix_caching: bool) -> None:
        for group in groups:
            if group.kind != "full":
                raise ValueError(f"KV groups of kind {group.kind!r} are not supported yet")
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.pools = [BlockPool(group.num_blocks, PrefixCache() if prefix_caching else None) for group in groups]

    @property
    def blocks_total(self) -> int:
        """Blocks of all groups."""
        return sum(pool.num_blocks for pool in self.pools)

    @property
    def blocks_used(self) -> int:
        """Blocks of all groups that requests hold."""
        return sum(pool.used for pool in self.pools)

    def open(self, request: Request) -> None:
        """Begin a request's block tables with what the prefix cache has; sets `computed`.

        At least the last known token is left to compute: its logits are what the step is for.
        """
        request.block_tables = [[] for _ in self.pools]
        request.computed = 0
        if not self.prefix_caching:
            return
        usable = (len(request.token_ids) - 1) // self.block_size
        hashes = self._hashes(request, usable)
        found = [pool.cache.find(hashes) for pool in self.pools if pool.cache is not None]
        hits = min(len(blocks) for blocks in found)
        for pool, table, blocks in zip(self.pools, request.block_tables, found, strict=True):
            pool.share(blocks[:hits])
            table.extend(blocks[:hits])
        request.computed = hits * self.block_size

    def fits(self, request: Request, tokens: int) -> bool:
        """Whether an opened request's tables can grow to `tokens` tokens now."""
        wanted = self._blocks_for(tokens)
        return all(wanted - len(t) <= pool.available for pool, t in zip(self.pools, request.block_tables, strict=True))

    def extend(self, request: Request, tokens: int) -> tuple[tuple[int, ...], ...] | None:
        """Grow the tables to hold `tokens` tokens: the new blocks of each group, or None if they are not there."""
        if not self.fits(request, tokens):
            return None
        wanted = self._blocks_for(tokens)
        new_blocks = []
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            blocks = pool.take(max(0, wanted - len(table)))
            table.extend(blocks)
            new_blocks.append(tuple(blocks))
        return tuple(new_blocks)

    def remember(self, request: Request) -> None:
        """Make the request's full blocks findable, as far as their tokens are known on the host."""
        if not self.prefix_caching:
            return
        full = min(request.computed, len(request.token_ids)) // self.block_size
        if full <= request.remembered:
            return
        hashes = self._hashes(request, full)
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            if pool.cache is not None:
                for index in range(request.remembered, full):
                    pool.cache.remember(hashes[index], table[index])
        request.remembered = full

    def forget(self, request: Request) -> None:
        """Nobody is to find the request's blocks any more: what they hold may be wrong."""
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            if pool.cache is not None:
                for block in table:
                    pool.cache.forget(block)

    def close(self, request: Request) -> None:
        """Give everything back."""
        for pool, table in zip(self.pools, request.block_tables, strict=True):
            pool.give_back(table)
        request.block_tables = []
        request.computed = request.remembered = 0

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """RuntimeError unless every block is accounted for exactly once."""
        requests = [request for request in holders if request.block_tables]
        for index, pool in enumerate(self.pools):
            pool.check_integrity([block for request in requests for block in request.block_tables[index]])

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _hashes(self, request: Request, count: int) -> list[bytes]:
        known = request.block_hashes
        while len(known) < count:
            start = len(known) * self.block_size
            parent = known[-1] if known else root_hash(request.cache_salt)
            known.append(chain_hash(parent, request.token_ids[start : start + self.block_size]))
        return known[:count]
