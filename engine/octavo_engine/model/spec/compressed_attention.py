"""Specs of attention to a window of tokens, and to compressed keys for several earlier tokens each (DeepSeek V4)."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.attention.backend import KVGroupSpec, RowSpec
from octavo_engine.model.spec.norms import NormSpec
from octavo_engine.model.spec.rope import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """A choice of compressed keys for each query, by scores of small heads (lightning indexer, arXiv 2512.02556)."""

    num_heads: int
    size: int
    """The size of a head, and of the compressed keys that it reads."""
    kept: int
    """The most keys that are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorSpec:
    """Compressed keys of `rate` tokens each: the mean of the tokens' projections, weighted by the softmax of their
    gates."""

    rate: int
    overlapping: bool
    """Whether a key also stands for the `rate` tokens before its own, with another projection."""
    indexer: IndexerSpec | None = None
    """The choice of keys that a query attends to; None: it attends to all."""

    @property
    def window(self) -> int:
        """The tokens that one key is made of."""
        return self.rate * (2 if self.overlapping else 1)

    def projected(self, size: int) -> int:
        """Return how many numbers, and as many gates, are projected of a token for keys of `size`."""
        return size * (2 if self.overlapping else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttentionSpec:
    """Attention to a window and to compressed keys, with one key for all heads, which is also the value.

    RoPE rotates the last dimensions of keys, and is reverted in the heads' results, which are projected by groups.
    """

    num_heads: int
    head_dim: int
    query_rank: int
    """Size of the latent that queries are projected from."""
    rope: RopeSpec
    """It rotates neighbouring pairs of the last `rotary_dim` dimensions, those of compressed keys too."""
    rotary_dim: int
    norm: NormSpec
    """The norm of the latent and of keys; without its weights, of each query's heads."""
    window: int
    """The number of tokens whose own keys a query sees, itself included."""
    output_groups: int
    """The groups of heads whose results are projected separately, each to `output_rank` numbers."""
    output_rank: int
    compressor: CompressorSpec | None
    """None: a query sees nothing before its window."""

    @property
    def num_kv_heads(self) -> int:
        """Ranks share groups of heads as they share the query heads and KV heads of attention."""
        return self.output_groups

    @property
    def scale(self) -> float:
        """The factor of attention scores: a score is query times key times this factor."""
        return float(self.head_dim**-0.5)

    @property
    def rope_size(self) -> int:
        """The dimensions of a head that RoPE rotates."""
        return self.rotary_dim

    @property
    def query_scaling(self) -> None:
        """Queries do not grow with their position."""

    @property
    def kv_of_layer(self) -> None:
        """Each layer has a cache of its own."""

    @property
    def kv_groups(self) -> tuple[KVGroupSpec, ...]:
        """The KV cache groups of a layer, without layer numbers: keys, projections to be compressed, and compressed
        keys."""
        keys = KVGroupSpec("sliding", (), 0, 0, self.window, rows=(RowSpec("keys", self.head_dim),))
        compressor = self.compressor
        if compressor is None:
            return (keys,)
        sizes = {"": self.head_dim} | ({} if compressor.indexer is None else {"index_": compressor.indexer.size})
        pending = tuple(RowSpec(f"{of}pending", 2 * compressor.projected(size)) for of, size in sizes.items())
        compressed = tuple(RowSpec(f"{of}compressed", size) for of, size in sizes.items())
        return (
            keys,
            KVGroupSpec("sliding", (), 0, 0, compressor.window, rows=pending),
            KVGroupSpec("full", (), 0, 0, rows=compressed, rate=compressor.rate),
        )
