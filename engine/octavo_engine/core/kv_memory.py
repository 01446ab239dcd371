"""The KV memory: the blocks of all KV groups that requests need, take, share and free."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups import NO_BLOCK, Copies, KVGroup, group_memory, held
from octavo_engine.core.prefix_cache import PrefixCache, extend_hashes
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.step import BlockOp, BlockOpKind, TableChange
from octavo_engine.core.swap_space import SwapSpace
from octavo_engine.errors import NotAdmissibleError


class KVMemory:
    """The block pools of all groups as one memory. It notes copies and moves of blocks in order, for the next plan."""

    def __init__(
        self,
        groups: Sequence[KVGroup],
        block_size: int,
        *,
        prefix_caching: bool,
        eviction: str = "lru",
        ttl: float | None = None,
        max_chunk: int = 1 << 20,
    ) -> None:
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        caches = [PrefixCache(eviction, ttl) if prefix_caching else None for _ in groups]
        self.pools = [BlockPool(group.num_blocks, cache) for group, cache in zip(groups, caches, strict=True)]
        self.blocks_total = sum(pool.num_blocks for pool in self.pools)
        tokens = [group.num_blocks * block_size for group in groups if group.kind != "recurrent"]
        self.tokens = max(tokens, default=float("inf"))
        """Tokens of context that fit, by the group with the most blocks: other groups keep only part of a context."""
        pairs = zip(groups, self.pools, strict=True)
        self.groups = [group_memory(group, pool, block_size, max_chunk) for group, pool in pairs]
        self.copied_blocks = 0
        self._all_kept = all(group.kind == "full" for group in groups)
        self._keeps_state = [group.kind == "recurrent" for group in groups]
        self.has_states = any(self._keeps_state)
        self._operations: list[BlockOp] = []
        self.swap = SwapSpace(self.groups, [group.swap_blocks for group in groups], self._operations)

    @property
    def unreserved(self) -> list[int]:
        """The number of blocks of each group that could be taken."""
        return [pool.unreserved for pool in self.pools]

    @property
    def blocks_used(self) -> int:
        """The number of blocks of all groups that requests hold."""
        return sum(pool.used for pool in self.pools)

    def tick(self, now: float) -> None:
        """Free cached blocks that have been unused for too long."""
        for pool in self.pools:
            pool.tick(now)

    def take_operations(self) -> tuple[BlockOp, ...]:
        """Return the block operations that the next step performs before it computes; each is returned once."""
        operations = tuple(self._operations)
        self._operations.clear()
        return operations

    def check_ever_fits(self, tokens: int) -> None:
        """Raise NotAdmissibleError if a sequence of `tokens` tokens would not fit even into the empty memory."""
        for group in self.groups:
            if group.peak(tokens) > group.pool.num_blocks:
                raise NotAdmissibleError(
                    f"{tokens} tokens need {group.peak(tokens)} KV blocks of {self.block_size}, and there are "
                    f"{group.pool.num_blocks}; ask for fewer tokens, or raise --kv-cache-memory"
                )

    def match(self, state: RequestState, *, private: bool = False) -> None:
        """Begin a request's block tables with the prefix cache's blocks, and set its `computed` tokens.

        At least the last known token is left to compute, for its logits. A `private` request will reserve blocks, or
        has swapped ones: it shares none if a group frees blocks as a sequence grows, or it could need more than `peak`.
        """
        caching = self.prefix_caching and (self._all_kept or not private) and not state.needs_prompt_logprobs
        usable = (len(state.token_ids) - 1) // self.block_size if caching else 0
        hashes = extend_hashes(state, usable, self.block_size)
        lengths = [group.hit_lengths(hashes) for group in self.groups]
        longest = min(max(each) for each in lengths)
        hits = next(n for n in range(longest, -1, -1) if all(n in each for each in lengths))
        state.block_tables = [group.match(hashes[:hits]) for group in self.groups]
        state.computed = hits * self.block_size
        state.num_cached_blocks = hits
        if self.has_states:
            known = (max(each) for each, keeps_state in zip(lengths, self._keeps_state, strict=True) if not keeps_state)
            state.snapshots = usable * self.block_size, min(known, default=hits) * self.block_size

    def fork(self, parent: RequestState, child: RequestState, computed: int) -> bool:
        """Share the blocks of `parent`'s first `computed` tokens, which `child` begins with; False if groups cannot."""
        shared = min(computed, len(child.token_ids) - 1)
        # A copy of the last block would be one more than a parent with reserved blocks has reserved.
        if shared <= 0 or not parent.block_tables or parent.reserved:
            return False
        tables = list(zip(self.groups, parent.block_tables, strict=True))
        if not all(group.can_fork(table, shared, computed) for group, table in tables):
            return False
        child.block_tables = [group.fork(table, shared) for group, table in tables]
        child.computed = shared
        child.num_cached_blocks = shared // self.block_size  # the parent itself caches the shared blocks
        parent.capacity = min(parent.capacity, parent.computed)
        return True

    def count_hits(self, state: RequestState) -> None:
        """Count a hit of each cached block in the tables of a request that begins to run."""
        for pool, table in zip(self.pools, state.block_tables, strict=True):
            for block in table:
                if block in pool.cache.known:
                    pool.cache.found(block, state.request.priority)

    def shortage(self, state: RequestState, tokens: int, spare: float = 0.0) -> list[int]:
        """Return how many blocks of each group are missing to grow to `tokens` and leave a share `spare` free."""
        return [
            max(group.peak(tokens) - held(table), group.missing(table, state.computed, state.computed + 1))
            + int(spare * group.pool.num_blocks)
            - group.pool.unreserved
            for group, table in zip(self.groups, state.block_tables, strict=True)
        ]

    def reserve(self, state: RequestState) -> None:
        """Reserve all blocks that a request can still need, so that it can run to its end."""
        tables = zip(self.groups, state.block_tables, strict=True)
        state.reserved = [max(0, group.peak(state.final_len) - held(table)) for group, table in tables]
        for pool, count in zip(self.pools, state.reserved, strict=True):
            pool.reserved += count

    def extend(self, state: RequestState, tokens: int) -> list[TableChange] | None:
        """Grow the tables to hold `tokens` tokens; return their changes, or None if the blocks are not free."""
        start, tables, reserved = state.computed, state.block_tables, state.reserved
        for index, group in enumerate(self.groups):
            own = reserved[index] if reserved else 0
            if group.missing(tables[index], start, tokens) > group.pool.unreserved + own:
                return None
        changes = []
        capacity = min(state.final_len - 1, state.short_end)  # the answer's last token is never computed
        for index, group in enumerate(self.groups):
            table = tables[index]
            before = held(table) if reserved else 0
            copies: Copies = []
            changed = group.grow(table, start, tokens, copies)
            if reserved:
                taken = min(held(table) - before, reserved[index])
                reserved[index] -= taken
                group.pool.reserved -= taken
            if changed < len(table):
                changes.append(TableChange(state.row, index, changed, tuple(table[changed:])))
            if copies:
                self.copied_blocks += len(copies)
                self._operations += [BlockOp(BlockOpKind.COPY, index, *copy) for copy in copies]
            capacity = min(capacity, group.capacity(table, tokens))
        state.capacity = capacity
        return changes

    def stop_before(self, state: RequestState, end: int) -> int:
        """Return where a chunk planned up to `end` should stop, so that recurrent groups save snapshots."""
        if not self.prefix_caching or not self.has_states or state.reserved:
            return end
        wanted = (tokens for tokens in state.snapshots if state.computed < tokens)
        stop = min(end // self.block_size * self.block_size, *wanted, end)
        return stop if stop > state.computed else end

    def cache_blocks(self, state: RequestState) -> None:
        """Put the request's full blocks into the prefix cache, as far as their tokens are known on the host."""
        if not self.prefix_caching or (state.reserved and not self._all_kept):
            return
        full = min(state.computed, len(state.token_ids)) // self.block_size
        if full <= state.num_cached_blocks:
            return
        hashes = extend_hashes(state, full, self.block_size)
        for group, table in zip(self.groups, state.block_tables, strict=True):
            wanted = state.computed in state.snapshots
            group.cache_blocks(table, hashes, state.num_cached_blocks, state.computed, state.request, wanted=wanted)
        state.num_cached_blocks = full

    def free(self, state: RequestState) -> None:
        """Free all blocks that the request holds or has reserved on the device; it may have none."""
        for pool, table in zip(self.pools, state.block_tables, strict=False):
            pool.free(block for block in table if block != NO_BLOCK)
        for pool, count in zip(self.pools, state.reserved, strict=False):
            pool.reserved -= count
        state.block_tables, state.reserved = [], []
        state.computed = state.num_cached_blocks = state.capacity = 0

    def freeable(self, state: RequestState) -> list[int]:
        """Return how many blocks of each group would become available if the request freed its own."""
        tables = zip(self.pools, state.block_tables, strict=True)
        return [sum(block != NO_BLOCK and pool.references(block) == 1 for block in table) for pool, table in tables]

    def forget(self, state: RequestState) -> None:
        """Remove the blocks that a request computed, as they may be wrong, from the prefix cache; its hits stay."""
        for pool in self.pools:
            for digest in state.block_hashes:
                pool.forget(digest, state.request_id)

    def forget_all(self) -> None:
        """Remove all blocks from the prefix cache, even while requests use them."""
        for pool in self.pools:
            for known in list(pool.cache.known.values()):
                pool.forget(known.digest, known.owner)

    def check_integrity(self, requests: Sequence[RequestState]) -> None:
        """Raise RuntimeError unless pools, block tables and reservations agree on every block."""
        holding = [state for state in requests if state.block_tables]
        for index, pool in enumerate(self.pools):
            pool.check_integrity([b for state in holding for b in state.block_tables[index] if b != NO_BLOCK])
            reserved = sum(state.reserved[index] for state in requests if state.reserved)
            if reserved != pool.reserved:
                raise RuntimeError(f"{pool.reserved} blocks are kept, but {reserved} were reserved")
        self.swap.check_integrity(requests)
