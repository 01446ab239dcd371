"""KV groups: layers that keep past tokens in the same way share a pool of blocks, and one block table per request.

Full attention keeps every token, a sliding window the last ones, a recurrent layer one state. Each kind has a class
with the same methods on a request's table: which blocks the next tokens need, which cached blocks a request can begin
with, which blocks a fork can share. An entry of a table whose block is not held (any more) is `NO_BLOCK`.

A block that another request holds, or that the prefix cache knows, is never written: it is copied first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.kv_groups.memory import NO_BLOCK, Copies, GroupMemory, held
from octavo_engine.core.kv_groups.recurrent import RecurrentMemory
from octavo_engine.core.kv_groups.sliding import SlidingMemory

__all__ = ["NO_BLOCK", "Copies", "GroupMemory", "KVGroup", "group_memory", "held"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose blocks are allocated together."""

    num_blocks: int
    kind: Literal["full", "sliding", "recurrent"] = "full"
    window: int | None = None  # tokens that a query sees, its own included (sliding)
    swap_blocks: int = 0  # blocks in CPU memory


def group_memory(group: KVGroup, pool: BlockPool, block_size: int, max_chunk: int) -> GroupMemory:
    """Return the object that manages the blocks of a group, by the group's kind."""
    if group.kind == "recurrent":
        return RecurrentMemory(pool, block_size)
    if group.kind == "sliding":
        if group.window is None or group.window < 1:
            raise ValueError(f"a sliding group needs a window of at least 1 token, not {group.window}")
        return SlidingMemory(pool, block_size, group.window, max_chunk)
    return GroupMemory(pool, block_size)
