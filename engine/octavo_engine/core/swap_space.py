"""The swap space: CPU memory for the blocks of preempted requests, of each KV group, none of them shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups import NO_BLOCK, GroupMemory, held
from octavo_engine.core.request_state import RequestState, SwappedTokens
from octavo_engine.core.step import BlockOp, BlockOpKind


class SwapSpace:
    """Saves a request's computed blocks and restores them later, by block operations that it appends to a list."""

    def __init__(self, groups: Sequence[GroupMemory], sizes: Iterable[int], operations: list[BlockOp]) -> None:
        """Start with an empty space of `sizes[i]` blocks for `groups[i]`; operations are appended to `operations`."""
        self.pools = [BlockPool(size) for size in sizes]
        self.blocks_out = self.blocks_in = 0  # blocks moved so far, out of the device and back
        self._groups = groups
        self._operations = operations

    def has_room(self, state: RequestState) -> bool:
        """Return True if the swap space has free blocks for all blocks that the request holds."""
        tables = zip(self.pools, state.block_tables, strict=True)
        return state.computed > 0 and all(held(table) <= pool.available for pool, table in tables)

    def blocks_to_save(self, state: RequestState) -> int:
        """Return how many blocks `save` would move of the group that has the most."""
        return max(held(table[: self._filled(state)]) for table in state.block_tables)

    def save(self, state: RequestState) -> None:
        """Copy the request's computed blocks to the swap space; the caller frees the device's blocks afterwards."""
        saved: list[dict[int, int]] = []
        for index, (pool, table) in enumerate(zip(self.pools, state.block_tables, strict=True)):
            entries: dict[int, int] = {}
            for entry, block in enumerate(table[: self._filled(state)]):
                if block != NO_BLOCK:
                    (entries[entry],) = pool.take(1)
                    self._operations.append(BlockOp(BlockOpKind.SWAP_OUT, index, block, entries[entry]))
            self.blocks_out += len(entries)
            saved.append(entries)
        state.swapped = SwappedTokens(state.computed, saved)

    def restore(self, state: RequestState) -> None:
        """Bring back a request's saved blocks, unless the prefix cache has as much. Blocks must be available."""
        saved = state.swapped
        if saved is not None and state.computed < saved.computed:
            tables = zip(self._groups, state.block_tables, saved.tables, strict=True)
            for index, (group, table, entries) in enumerate(tables):
                for source, target in group.restore(table, entries):
                    self._operations.append(BlockOp(BlockOpKind.SWAP_IN, index, source, target))
                    self.blocks_in += 1
            state.computed = saved.computed
        self.drop(state)

    def drop(self, state: RequestState) -> None:
        """Free the swap blocks of a request, if it has any."""
        if state.swapped is not None:
            for pool, entries in zip(self.pools, state.swapped.tables, strict=True):
                pool.free(entries.values())
        state.swapped = None

    def check_integrity(self, requests: Iterable[RequestState]) -> None:
        """Raise RuntimeError unless every block is free or held exactly once."""
        saved = [state.swapped for state in requests if state.swapped is not None]
        for index, pool in enumerate(self.pools):
            try:
                pool.check_integrity([block for tokens in saved for block in tokens.tables[index].values()])
            except RuntimeError as error:
                raise RuntimeError(f"in the swap space of group {index}: {error}") from error

    def _filled(self, state: RequestState) -> int:
        return -(-state.computed // self._groups[0].block_size)
