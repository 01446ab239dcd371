"""Which blocks hold the keys and values of which tokens: a chain of hashes, as in vLLM's automatic prefix caching.

A block's hash is SHA-256 over its parent's hash and its own tokens; the chain's root is made of the adapter and the
salt (by default the API key's tenant), so that two tenants never share a block. With a cryptographic hash a hit needs
no comparison of tokens.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256


def root_hash(salt: str, adapter: str = "") -> bytes:
    """Where a request's chain begins. Lengths go in too, so that no two pairs look alike."""
    return sha256(f"{len(adapter)}:{adapter}{len(salt)}:{salt}".encode()).digest()


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block of `tokens` after `parent`."""
    return sha256(parent + array("I", tokens).tobytes()).digest()


class PrefixCache:
    """The known blocks of one pool; those in no request's use are evicted least recently used first."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    @property
    def num_unused(self) -> int:
        """Known blocks that no request uses."""
        return len(self._unused)

    def unused_blocks(self) -> set[int]:
        """The same blocks, by id."""
        return set(self._unused)

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known beginning of a chain."""
        blocks = []
        for digest in hashes:
            block = self._block_of.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def remember(self, digest: bytes, block: int) -> None:
        """From now on `block` is found under `digest`, unless another block already is."""
        if digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest

    def knows(self, block: int) -> bool:
        """Whether the block is found under some hash."""
        return block in self._hash_of

    def use(self, block: int) -> None:
        """A request begins to use a known, unused block."""
        del self._unused[block]

    def rest(self, block: int) -> None:
        """The last request lets go of a known block."""
        self._unused[block] = None

    def forget(self, block: int) -> None:
        """A block in use is not to be found any more."""
        if (digest := self._hash_of.pop(block, None)) is not None:
            del self._block_of[digest]

    def evict(self) -> int:
        """Forget the unused block that rested longest; it is the caller's now."""
        block, _ = self._unused.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block
