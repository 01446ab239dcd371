"""The data that all layers of a step share, and attention between a layer's projections: QK norm, RoPE, backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, AttentionVariant, LayerCache
from octavo_engine.attention.bidirectional import DistanceTerms, attend_bidirectional
from octavo_engine.attention.qk_norm import QKNorm, normalise
from octavo_engine.attention.rope import Rope, rotate, split_heads
from octavo_engine.attention.states import StateStep
from octavo_engine.attention.token_rows import TokenRows
from octavo_engine.kernels.norm_weights import NormWeights


@dataclass(frozen=True, slots=True)
class StepContext:
    """The data that all layers of a step share: its backend, caches and states, and data of its tokens."""

    backend: AttentionBackend
    caches: Mapping[int, LayerCache]
    """The cache of each layer, by its index."""
    metadata: tuple[Any, ...]
    """The result of `backend.prepare` for each KV group."""
    group_of_layer: Sequence[int]
    """The KV group of each layer's keys and values, by layer index."""
    states: Mapping[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """The state tensors [slots, size] of each layer that keeps a state, by layer index."""
    state_groups: Mapping[int, int] = field(default_factory=dict)
    """The KV group of each layer's states, by layer index."""
    rows: Mapping[tuple[int, str], Tensor] = field(default_factory=dict)
    """The tensors of rows [blocks, rows, size] that layers keep, by layer index and name."""
    row_groups: Mapping[tuple[int, str], int] = field(default_factory=dict)
    """The KV group of each tensor in `rows`."""
    token_ids: Tensor | None = None
    """[T] token ids, for models whose layers route by the token itself."""
    per_layer_inputs: Tensor | None = None
    """[T, layers, size] vectors of the tokens, for models whose layers read them besides the residual stream."""
    embedded: Tensor | None = None
    """[T, hidden] the tokens' embeddings, for models whose layers read them again."""
    lengths: tuple[int, ...] = ()
    """The number of tokens of each sequence in this step."""
    chosen: dict[int, Tensor] = field(default_factory=dict)
    """The tokens that each query attends to, [T, k] int64, by the layer that has chosen last."""
    router_latents: list[Tensor] = field(default_factory=list)
    """The latent [T, size] of the last router that has one, for the next layer's; empty before the first layer."""
    adapter_slots: Tensor | None = None
    """[T] int32, the slot of each token's adapter, -1 for none, for kernels that compute all layers in one call."""

    def state(self, layer: int) -> tuple[tuple[Tensor, ...], StateStep]:
        """Return the tensors [slots, size] of all sequences' states in `layer`, and the slots of this step's."""
        return self.states[layer], self.metadata[self.state_groups[layer]]

    def rows_of(self, layer: int, name: str) -> TokenRows:
        """Return the rows of this name that `layer` keeps."""
        return TokenRows(self.rows[layer, name], self.metadata[self.row_groups[layer, name]])

    def attend(
        self, layer: int, heads: Tensor, variant: AttentionVariant, rope: Rope | None, qk_norm: QKNorm | None
    ) -> Tensor:
        """Return attention [T, H, D] of this step's fused projection [T, H + 2 K, D], which may be overwritten.

        Query and key are normalised and rotated, keys and values are written into the cache, then the queries attend.
        """
        cache, metadata = self.caches[layer], self.metadata[self.group_of_layer[layer]]
        query = write_heads(self.backend, cache, heads, rope, qk_norm, metadata)
        if rope is not None and rope.query_scale is not None:
            query = query * rope.query_scale.to(query.dtype)
        return self.backend.attend(query, cache, metadata, variant)

    def attend_bidirectional(
        self,
        heads: Tensor,
        kv_heads: int,
        scale: float,
        window: int | None,
        rope: Rope | None,
        qk_norm: QKNorm | None,
        distance_terms: DistanceTerms | None = None,
    ) -> Tensor:
        """Return bidirectional attention [T, H, D] of the fused projection [T, H + 2 K, D] of whole prompts.

        A query sees all tokens of its prompt, or `window` of them to each side. Nothing is cached. `distance_terms`
        are added to scores.
        """
        heads = normalise(heads, kv_heads, qk_norm)
        if rope is not None:
            heads = torch.cat((rotate(heads[:, :-kv_heads], rope), heads[:, -kv_heads:]), dim=1)
        return attend_bidirectional(heads, kv_heads, self.lengths, scale, window, distance_terms)

    def attend_shared(
        self, layer: int, query: Tensor, variant: AttentionVariant, rope: Rope | None, norm: NormWeights | None
    ) -> Tensor:
        """Return attention [T, H, D] of projected queries [T, H, D] over the cache that `layer` has already written."""
        query = query if norm is None else norm.apply(query)
        query = query if rope is None else rotate(query, rope)
        return self.backend.attend(query, self.caches[layer], self.metadata[self.group_of_layer[layer]], variant)

    def attend_latent(self, layer: int, query: Tensor, key: Tensor, variant: AttentionVariant) -> Tensor:
        """Return attention [T, H, latent] of queries [T, H, D] in a layer whose values are part of its keys [T, 1, D].

        Queries and keys are already normalised and rotated.
        """
        cache, metadata = self.caches[layer], self.metadata[self.group_of_layer[layer]]
        self.backend.write(cache, key, key, metadata)
        return self.backend.attend(query, cache, metadata, variant)


def write_heads(
    backend: AttentionBackend,
    cache: LayerCache,
    heads: Tensor,
    rope: Rope | None,
    qk_norm: QKNorm | None,
    metadata: Any,
) -> Tensor:
    """Normalise and rotate query and key of `heads` [T, H + 2 K, D], write keys and values, return queries [T, H, D].

    This takes the backend's fast path if it has one for this RoPE and norm, else single steps in PyTorch. `heads` may
    be overwritten.
    """
    kv_heads = cache.key.shape[2]
    late = qk_norm is not None and qk_norm.after_rope
    fused = None if late else backend.fused_write(cache, heads, rope, qk_norm, metadata)
    if fused is not None:
        return fused
    heads = heads if late else normalise(heads, kv_heads, qk_norm)
    query, key, value = split_heads(heads, kv_heads)
    if rope is not None:
        rotated = rotate(heads[:, :-kv_heads], rope)
        query, key = rotated[:, :-kv_heads], rotated[:, -kv_heads:]
    if qk_norm is not None and late:
        query, key = qk_norm.query.apply(query), qk_norm.key.apply(key)
    backend.write(cache, key, value, metadata)
    return query
