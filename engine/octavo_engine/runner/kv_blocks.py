"""The sizing of KV groups: computes how many blocks of the cache's memory each one gets.

One number decides all: the blocks of full attention, which keeps every token. A group with a sliding window gets as
many, so that requests shorter than the window have blocks for all their tokens, but no more than `window_seqs` requests
can use: a window each, and one step's tokens together. Those are the running requests and as many whose last window the
prefix cache keeps, where hits can end. Layers that keep a state get a slot for each of these requests, and for
snapshots, where hits can end too, as many bytes as all blocks of full attention.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowNeed:
    """Layers that see no more than a sliding window."""

    window: int
    """Tokens, the query's own included."""
    kv_per_token: int
    """Bytes of one token in all of them."""


_BLOCKS_OF_SNAPSHOT = 64
"""The blocks for which there is one snapshot of a state, if tokens take no memory."""


@dataclass(frozen=True, slots=True)
class BlockShares:
    """The sizes from which the number of KV blocks is computed."""

    kv_per_token: int
    """Bytes of one token in the layers of full attention; 0 if there are none."""
    windows: tuple[WindowNeed, ...]
    block_size: int
    step_tokens: int
    """Most tokens of one step."""
    window_seqs: int
    """Requests for which there are windows and states, at least 1: then the longest sequence of all has enough."""
    state_bytes: int = 0
    """Bytes of one sequence's states in all layers that keep any."""

    def state_slots(self, blocks: int) -> int:
        """Slots for states where full attention has `blocks`: at most one for each block."""
        return min(max(2, blocks), self._running_slots + self._snapshots(blocks))

    @property
    def _running_slots(self) -> int:
        """One for each request, and one into which a state is copied."""
        return self.window_seqs + 1

    def _snapshots(self, blocks: int) -> int:
        if self.window_seqs == 1 or not self.state_bytes:  # memory is short
            return 0
        if not self.kv_per_token:
            return blocks // _BLOCKS_OF_SNAPSHOT
        return self.block_size * blocks * self.kv_per_token // self.state_bytes

    def blocks_of(self, window: int | None, blocks: int) -> int:
        """Blocks of a group with `window`, None: full attention, where that has `blocks`."""
        if window is None:
            return blocks
        of_each = -(-window // self.block_size) + 1  # wherever it begins in a block
        return min(blocks, self.window_seqs * of_each + -(-self.step_tokens // self.block_size))

    def keeps_all(self, blocks: int) -> bool:
        """Return True if all groups have as much as full attention where that has `blocks`."""
        windows = all(self.blocks_of(need.window, blocks) == blocks for need in self.windows)
        return windows and (not self.state_bytes or self.state_slots(blocks) >= blocks)

    def bytes(self, blocks: int) -> int:
        """Memory of all groups where full attention has `blocks`."""
        states = self.state_slots(blocks) * self.state_bytes
        return self.block_size * blocks * self.kv_per_token + self.window_bytes(blocks) + states

    def window_bytes(self, blocks: int) -> int:
        """Memory of the groups with a window where full attention has `blocks`."""
        return self.block_size * sum(need.kv_per_token * self.blocks_of(need.window, blocks) for need in self.windows)

    def bytes_of_running(self, blocks: int) -> int:
        """Return the bytes of windows and states that running requests need."""
        return self.window_bytes(blocks) + self.state_bytes * min(max(2, blocks), self._running_slots)

    def limit(self, memory: int) -> int:
        """No more blocks of full attention than these fit into `memory` bytes; 0 where there is no such layer."""
        return memory // (self.block_size * self.kv_per_token) if self.kv_per_token else 0

    def most(self, memory: int, limit: int) -> int:
        """The most blocks of full attention, up to `limit`, that fit with all other groups into `memory` bytes."""
        return max(0, bisect_right(range(limit + 1), memory, key=self.bytes) - 1)
