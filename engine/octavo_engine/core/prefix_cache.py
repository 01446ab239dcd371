"""The prefix cache: finds blocks by the tokens they hold, with a chain of hashes as in vLLM.

A block's hash is SHA-256 over its parent's hash and its own tokens. The chain's root hashes the adapter, whether the
sequence is a long one (LongRoPE), and the salt, by default the API key's tenant, so that no two tenants share a block.
A cryptographic hash makes a comparison of tokens needless.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from octavo_engine.core.eviction import POLICIES
from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState


def root_hash(salt: str, adapter: str = "", *, long_context: bool = False) -> bytes:
    """Return the first hash of a chain. Lengths are in it, so no two pairs of adapter and salt give the same bytes."""
    return sha256(f"{'long' * long_context}{len(adapter)}:{adapter}{len(salt)}:{salt}".encode()).digest()


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Return the hash of a full block of `tokens` that follows the block with the hash `parent`."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


@dataclass(slots=True)
class _Known:
    """A cached block: its hash, owner and use."""

    digest: bytes
    owner: str  # id of the request that computed it
    priority: int  # of its most important user
    wanted: bool  # whether later requests are expected to hit it, though its owner has computed further
    uses: int = 0  # how often it was found


def extend_hashes(state: RequestState, count: int, block_size: int) -> list[bytes]:
    """Return the hashes of a request's first `count` blocks, all of them full of tokens that are known on the host."""
    known, request = state.block_hashes, state.request
    while len(known) < count:
        start = len(known) * block_size
        parent = known[-1] if known else root_hash(request.cache_salt, request.adapter, long_context=state.long_context)
        known.append(chain_hash(parent, state.token_ids[start : start + block_size]))
    return known if len(known) == count else known[:count]


class PrefixCache:
    """The cached blocks of one pool. Unused ones stay until the eviction policy chooses them."""

    def __init__(self, policy: str = "lru", ttl: float | None = None) -> None:
        self._block_of: dict[bytes, int] = {}
        self.known: dict[int, _Known] = {}
        """The blocks that a hash leads to, used or unused."""
        self._policy = POLICIES[policy]()
        self.unused = self._policy.ranks
        """The known blocks that no request uses."""
        self._ttl = ttl
        self._unused_since: OrderedDict[int, float] = OrderedDict()  # oldest first; empty without a time to live

    def get(self, digest: bytes) -> int | None:
        """Return the block under `digest`, None if there is none."""
        return self._block_of.get(digest)

    def insert(self, digest: bytes, block: int, owner: Request, *, wanted: bool = False) -> None:
        """Cache `block`, which `owner` computed and uses, under `digest`, unless another block is there already."""
        if digest not in self._block_of and block not in self.known:
            self._block_of[digest] = block
            self.known[block] = _Known(digest, owner.request_id, owner.priority, wanted)

    def owner(self, block: int) -> str:
        """Return the id of the request that computed a cached block."""
        return self.known[block].owner

    def found(self, block: int, priority: int) -> None:
        """Count a hit: a request of this `priority` begins to run with a cached block."""
        known = self.known[block]
        known.uses += 1
        known.priority = min(known.priority, priority)

    def touch(self, block: int) -> None:
        """Note that a cached block that no request used is used again."""
        self._policy.remove(block)
        self._unused_since.pop(block, None)

    def release(self, block: int, now: float, *, cold: bool = False) -> None:
        """Note that no request uses a cached block; a `cold` one is evicted early, unless it ever was a hit."""
        known = self.known[block]
        self._policy.release(block, known.uses, known.priority, cold=cold and not known.uses)
        if self._ttl is not None:
            self._unused_since[block] = now

    def cool(self, digest: bytes) -> None:
        """Let the block under `digest` be evicted early, unless it is used, ever was a hit, or is wanted."""
        block = self._block_of.get(digest)
        if block in self.unused and not (self.known[block].uses or self.known[block].wanted):
            self._policy.remove(block)
            self._policy.release(block, 0, self.known[block].priority, cold=True)

    def forget(self, block: int) -> None:
        """Remove a block that is in use, or evicted, from the cache."""
        if (known := self.known.pop(block, None)) is not None:
            del self._block_of[known.digest]

    def evict(self) -> int:
        """Remove the block that the policy chooses from the cache and return it; it is the caller's now."""
        block = self._policy.evict()
        self._unused_since.pop(block, None)
        self.forget(block)
        return block

    def expire(self, now: float) -> list[int]:
        """Remove and return the blocks that were unused for longer than the time to live; they are the caller's."""
        if self._ttl is None:
            return []
        expired = []
        for block, since in self._unused_since.items():
            if since + self._ttl > now:
                break
            expired.append(block)
        for block in expired:
            self.touch(block)
            self.forget(block)
        return expired
