"""A request's KV memory over all groups: how much it needs, takes, shares and gives back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_engine.core.admission import NotAdmissibleError
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups import NO_BLOCK, GroupMemory, Growth, KVGroup, group_memory
from octavo_engine.core.prefix_cache import PrefixCache, chain_hash, root_hash
from octavo_engine.core.request_state import RequestState, SwappedTokens
from octavo_engine.core.step import BlockOp, BlockOpKind, TableChange
from octavo_engine.core.swap_space import SwapSpace


class KVMemory:
    """The block pools of all groups, seen as one memory for sequences of tokens.

    What has to be moved on the device is noted as block operations, in order; a plan takes them with it.
    """

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
        self.pools = [
            BlockPool(group.num_blocks, PrefixCache(eviction, ttl) if prefix_caching else None) for group in groups
        ]
        self.groups: list[GroupMemory] = [
            group_memory(group, pool, block_size, max_chunk) for group, pool in zip(groups, self.pools, strict=True)
        ]
        self._all_kept = all(group.kind == "full" for group in groups)
        self._has_states = any(group.kind == "recurrent" for group in groups)
        self.swap = [SwapSpace(group.swap_blocks) for group in groups]
        self.copied_blocks = self.swapped_out_blocks = self.swapped_in_blocks = 0
        self._operations: list[BlockOp] = []

    @property
    def blocks_total(self) -> int:
        """Blocks of all groups."""
        return sum(pool.num_blocks for pool in self.pools)

    @property
    def tokens(self) -> int:
        """Tokens of context that fit, by the group that has most blocks: others keep only a part of a context."""
        return max(pool.num_blocks for pool in self.pools) * self.block_size

    @property
    def available(self) -> list[int]:
        """Blocks that could be taken, of each group."""
        return [pool.available - pool.promised for pool in self.pools]

    @property
    def blocks_used(self) -> int:
        """Blocks of all groups that requests hold."""
        return sum(pool.used for pool in self.pools)

    @property
    def usage(self) -> float:
        """Share of its blocks that requests hold, in the group that is fullest."""
        return max(pool.used / pool.num_blocks for pool in self.pools)

    def wasted_slots(self, running: Iterable[RequestState]) -> int:
        """Slots of used blocks that hold no token."""
        return sum(
            group.unused_slots(table, state.computed)
            for state in running
            for group, table in zip(self.groups, state.block_tables, strict=True)
        )

    def tick(self, now: float) -> None:
        """Time passes: cached blocks may have rested too long."""
        for pool in self.pools:
            pool.tick(now)

    def take_operations(self) -> tuple[BlockOp, ...]:
        """What the next step must do with blocks before it computes."""
        operations, self._operations = tuple(self._operations), []
        return operations

    def open(self, state: RequestState, *, private: bool = False) -> None:
        """Begin a request's block tables with what the prefix cache has; sets `computed`.

        At least the last known token is left to compute: its logits are what the step is for. A `private` request will
        be promised its blocks; where groups give blocks back on the way, it shares none, or the sum would not hold.
        """
        caching = self.prefix_caching and (self._all_kept or not private)
        usable = (len(state.token_ids) - 1) // self.block_size if caching else 0
        hashes = self._hashes(state, usable)
        reaches = [group.reach(hashes) for group in self.groups]
        longest = min(max(reach) for reach in reaches)
        hits = next(n for n in range(longest, -1, -1) if all(n in reach for reach in reaches))
        state.block_tables = [group.adopt(hashes[:hits]) for group in self.groups]
        state.computed = hits * self.block_size
        state.remembered = hits

    def can_fork(self, parent: RequestState, child: RequestState, there: int) -> bool:
        """Whether `child`, whose tokens begin as `parent`'s, could share the parent's first `there` tokens."""
        computed = min(there, len(child.token_ids) - 1)
        tables = zip(self.groups, parent.block_tables, strict=False)
        return (
            computed > 0
            and bool(parent.block_tables)
            and not parent.promises  # copying its last block would take one more than it was promised
            and all(group.can_fork(table, computed, there) for group, table in tables)
        )

    def fork(self, parent: RequestState, child: RequestState, there: int) -> None:
        """Give `child` the parent's blocks; whoever first writes into a shared one copies it."""
        computed = min(there, len(child.token_ids) - 1)
        tables = zip(self.groups, parent.block_tables, strict=True)
        child.block_tables = [group.fork(table, computed) for group, table in tables]
        child.computed = computed
        child.remembered = computed // self.block_size  # the parent itself makes its blocks findable
        parent.capacity = min(parent.capacity, parent.computed)

    def count_hits(self, state: RequestState) -> None:
        """An opened request begins to run: only now was what it found of use."""
        for pool, table in zip(self.pools, state.block_tables, strict=True):
            if pool.cache is not None:
                for block in table:
                    if pool.cache.knows(block):
                        pool.cache.found(block, state.request.priority)

    def check_ever_fits(self, tokens: int) -> None:
        """NotAdmissibleError if a sequence of so many tokens would not fit even into the empty memory."""
        for group in self.groups:
            if group.peak(tokens) > group.pool.num_blocks:
                raise NotAdmissibleError(
                    f"{tokens} tokens need {group.peak(tokens)} KV blocks of {self.block_size}, and there are "
                    f"{group.pool.num_blocks}; ask for fewer tokens, or raise --kv-cache-memory"
                )

    def shortage(self, state: RequestState, tokens: int, spare: float = 0.0) -> list[int]:
        """Blocks of each group that an opened request lacks to grow to `tokens` tokens; 0 or less where none.

        A share `spare` of the group's blocks is to be left for others.
        """
        return [
            max(group.peak(tokens) - _held(table), group.missing(table, state.computed, state.computed + 1))
            + int(spare * group.pool.num_blocks)
            - (group.pool.available - group.pool.promised)
            for group, table in zip(self.groups, state.block_tables, strict=True)
        ]

    def whole_tables(self, state: RequestState) -> list[TableChange]:
        """All that a row which begins anew must know."""
        changes = []
        for index, table in enumerate(state.block_tables):
            first = table.count(NO_BLOCK)  # they are all at the beginning
            changes.append(TableChange(state.row, index, first, tuple(table[first:])))
        return changes

    def extend(self, state: RequestState, tokens: int) -> list[TableChange] | None:
        """Grow the tables to hold `tokens` tokens: what changes in them, or None if the blocks are not there."""
        start, tables, promises = state.computed, state.block_tables, state.promises
        for index, group in enumerate(self.groups):
            own = promises[index] if promises else 0
            if group.missing(tables[index], start, tokens) > group.pool.available - group.pool.promised + own:
                return None
        changes = []
        capacity = state.final_len - 1  # after the last token of all nothing is left to compute
        for index, group in enumerate(self.groups):
            table = tables[index]
            before = _held(table) if promises else 0
            growth = group.grow(table, start, tokens)
            if promises:
                self._keep_promise(state, index, _held(table) - before)
            if growth is not None:
                changes.append(TableChange(state.row, index, growth.index, growth.blocks))
                self._note_copy(index, growth)
            capacity = min(capacity, group.capacity(table, tokens))
        state.capacity = capacity
        return changes

    def _note_copy(self, index: int, growth: Growth) -> None:
        if growth.copied is not None:
            self.copied_blocks += 1
            self._operations.append(BlockOp(BlockOpKind.COPY, index, *growth.copied))

    def promise(self, state: RequestState) -> None:
        """Keep for an opened request all that it can come to need, so that it can run to its end. It fits."""
        state.promises = [
            max(0, group.peak(state.final_len) - _held(table))
            for group, table in zip(self.groups, state.block_tables, strict=True)
        ]
        for pool, promise in zip(self.pools, state.promises, strict=True):
            pool.promised += promise

    def _keep_promise(self, state: RequestState, index: int, taken: int) -> None:
        given = min(taken, state.promises[index])
        state.promises[index] -= given
        self.pools[index].promised -= given

    def remember(self, state: RequestState) -> None:
        """Make the request's full blocks findable, as far as their tokens are known on the host."""
        if not self.prefix_caching or (state.promises and not self._all_kept):
            return
        full = min(state.computed, len(state.token_ids)) // self.block_size
        if full <= state.remembered:
            return
        hashes = self._hashes(state, full)
        for group, table in zip(self.groups, state.block_tables, strict=True):
            group.remember(table, hashes, state.remembered, state.computed, state.request)
        state.remembered = full

    def disown(self, state: RequestState) -> None:
        """Make the blocks that a closed request has computed unfindable: they may be wrong.

        Blocks that it matched in the prefix cache are right, and stay.
        """
        for pool in self.pools:
            for digest in state.block_hashes:
                pool.forget(digest, state.request_id)

    def close(self, state: RequestState) -> None:
        """Give everything back but what is in the swap space. A closed request may be closed again."""
        for pool, table in zip(self.pools, state.block_tables, strict=False):
            pool.give_back(block for block in table if block != NO_BLOCK)
        for pool, promise in zip(self.pools, state.promises, strict=False):
            pool.promised -= promise
        state.block_tables, state.promises = [], []
        state.computed = state.remembered = state.capacity = 0

    def held_alone(self, state: RequestState) -> list[int]:
        """Blocks of each group that others could have if the request gave its own back."""
        return [
            sum(block != NO_BLOCK and pool.references(block) == 1 for block in table)
            for pool, table in zip(self.pools, state.block_tables, strict=True)
        ]

    def worth_saving(self, state: RequestState) -> int:
        """Blocks to move if the request were swapped out: those of the group that has the most."""
        filled = -(-state.computed // self.block_size)
        return max(_held(table[:filled]) for table in state.block_tables)

    def stop_before(self, state: RequestState, end: int) -> int:
        """Where a chunk planned up to `end` should stop, so that recurrent groups leave checkpoints on their way."""
        if not self.prefix_caching or not self._has_states or state.promises:
            return end
        size, last = self.block_size, (state.known - 1) // self.block_size * self.block_size
        stop = min(end // size * size, last)
        return stop if stop > state.computed else end

    def can_swap_out(self, state: RequestState) -> bool:
        """Whether the swap space has room for what the request has computed."""
        tables = zip(self.swap, state.block_tables, strict=True)
        return state.computed > 0 and all(_held(table) <= swap.available for swap, table in tables)

    def swap_out(self, state: RequestState) -> None:
        """Save what the request has computed; it is closed afterwards."""
        saved: list[dict[int, int]] = []
        filled = -(-state.computed // self.block_size)
        for index, (swap, table) in enumerate(zip(self.swap, state.block_tables, strict=True)):
            places: dict[int, int] = {}
            for place, block in enumerate(table[:filled]):
                if block != NO_BLOCK:
                    places[place] = swap.take()
                    self._operations.append(BlockOp(BlockOpKind.SWAP_OUT, index, block, places[place]))
            self.swapped_out_blocks += len(places)
            saved.append(places)
        state.swapped = SwappedTokens(state.computed, saved)

    def swap_in(self, state: RequestState) -> None:
        """Bring back what an opened request has saved, unless the prefix cache knows as much. It fits."""
        saved = state.swapped
        if saved is not None and state.computed < saved.computed:
            tables = zip(self.groups, state.block_tables, saved.tables, strict=True)
            for index, (group, table, places) in enumerate(tables):
                for source, target in group.restore(table, places):
                    self._operations.append(BlockOp(BlockOpKind.SWAP_IN, index, source, target))
                    self.swapped_in_blocks += 1
            state.computed = saved.computed
        self.drop_swapped(state)

    def drop_swapped(self, state: RequestState) -> None:
        """What the request has in the swap space is needed no more."""
        if state.swapped is not None:
            for swap, places in zip(self.swap, state.swapped.tables, strict=True):
                swap.give_back(places.values())
        state.swapped = None

    def check_integrity(self, holders: Iterable[RequestState]) -> None:
        """RuntimeError unless every block is accounted for exactly once."""
        requests = list(holders)
        holding = [state for state in requests if state.block_tables]
        swapped = [state.swapped for state in requests if state.swapped is not None]
        for index, pool in enumerate(self.pools):
            pool.check_integrity([b for r in holding for b in r.block_tables[index] if b != NO_BLOCK])
            promised = sum(state.promises[index] for state in requests if state.promises)
            if promised != pool.promised:
                raise RuntimeError(f"{pool.promised} blocks are kept, but {promised} were promised")
            self.swap[index].check_integrity([b for saved in swapped for b in saved.tables[index].values()])

    def _hashes(self, state: RequestState, count: int) -> list[bytes]:
        known = state.block_hashes
        while len(known) < count:
            start = len(known) * self.block_size
            parent = known[-1] if known else root_hash(state.request.cache_salt, state.request.adapter)
            known.append(chain_hash(parent, state.token_ids[start : start + self.block_size]))
        return known if len(known) == count else known[:count]


def _held(table: Sequence[int]) -> int:
    return len(table) - table.count(NO_BLOCK)
