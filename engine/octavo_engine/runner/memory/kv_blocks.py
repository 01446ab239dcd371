"""The sizing of KV groups: computes how many blocks of the cache's memory each group gets.

All sizes follow from one number: the blocks of full attention, which keeps every token. A group with a sliding window
gets as many, so that requests shorter than the window have blocks for all their tokens, but no more than `window_seqs`
requests can use: a window each, and one step's tokens together. These are the running requests, and as many others
whose last window the prefix cache keeps so that hits can end there. Layers that keep a state get a slot for each of
these requests, and for snapshots, where hits can end too, as many bytes as all blocks of full attention.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowNeed:
    """The memory need of the layers with one sliding window."""

    window: int
    """The window in tokens, the query's own included."""
    kv_per_token: int
    """Bytes of one token in all of these layers."""


_BLOCKS_OF_SNAPSHOT = 64
"""Blocks for each snapshot of a state, in a model whose tokens take no memory."""


@dataclass(frozen=True, slots=True)
class BlockShares:
    """The sizes from which the number of KV blocks is computed."""

    kv_per_token: int
    """Bytes of one token in the layers of full attention; 0 if there are none."""
    windows: tuple[WindowNeed, ...]
    block_size: int
    step_tokens: int
    """The most tokens of one step."""
    window_seqs: int
    """The number of requests that get a window and a state, at least 1, with which the longest sequence can run."""
    state_bytes: int = 0
    """Bytes of one sequence's states in all layers that keep a state."""

    def state_slots(self, blocks: int) -> int:
        """Return the slots for states if full attention has `blocks` blocks: at most one for each block."""
        return min(max(2, blocks), self._running_slots + self._snapshots(blocks))

    @property
    def _running_slots(self) -> int:
        """The slots of running requests: one for each, and one into which a state is copied."""
        return self.window_seqs + 1

    def _snapshots(self, blocks: int) -> int:
        if self.window_seqs == 1 or not self.state_bytes:  # memory is short
            return 0
        if not self.kv_per_token:
            return blocks // _BLOCKS_OF_SNAPSHOT
        return self.block_size * blocks * self.kv_per_token // self.state_bytes

    def blocks_of(self, window: int | None, blocks: int) -> int:
        """Return the blocks of a group with `window` (None: full attention) if full attention has `blocks`."""
        if window is None:
            return blocks
        of_each = -(-window // self.block_size) + 1  # enough wherever the window begins in a block
        return min(blocks, self.window_seqs * of_each + -(-self.step_tokens // self.block_size))

    def keeps_all(self, blocks: int) -> bool:
        """Return True if every group has as many blocks as full attention, which has `blocks`."""
        windows = all(self.blocks_of(need.window, blocks) == blocks for need in self.windows)
        return windows and (not self.state_bytes or self.state_slots(blocks) >= blocks)

    def bytes(self, blocks: int) -> int:
        """Return the bytes of all groups if full attention has `blocks`."""
        states = self.state_slots(blocks) * self.state_bytes
        return self.block_size * blocks * self.kv_per_token + self.window_bytes(blocks) + states

    def window_bytes(self, blocks: int) -> int:
        """Return the bytes of the groups with a window if full attention has `blocks`."""
        return self.block_size * sum(need.kv_per_token * self.blocks_of(need.window, blocks) for need in self.windows)

    def bytes_of_running(self, blocks: int) -> int:
        """Return the bytes of the windows and states of `window_seqs` requests if full attention has `blocks`."""
        return self.window_bytes(blocks) + self.state_bytes * min(max(2, blocks), self._running_slots)

    def limit(self, memory: int) -> int:
        """Return an upper bound of the blocks of full attention that fit into `memory` bytes; 0 without such layers."""
        return memory // (self.block_size * self.kv_per_token) if self.kv_per_token else 0

    def most(self, memory: int, limit: int) -> int:
        """Return the most blocks of full attention, up to `limit`, that fit into `memory` bytes with all groups."""
        return max(0, bisect_right(range(limit + 1), memory, key=self.bytes) - 1)
