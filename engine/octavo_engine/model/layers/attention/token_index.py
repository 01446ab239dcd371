"""Chooses the tokens that each query attends to, and attends to them (DeepSeek Sparse Attention, arXiv 2512.02556)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.rope import Rope, rotate, rotate_pairs
from octavo_engine.attention.token_rows import TokenRows, attend_rows, best_rows, tile_numbers
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, unsharded
from octavo_engine.model.layers.attention.pooled_keys import PooledKeys, tokens_of_pools
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.spec import LatentAttentionSpec, NormSpec, TokenIndexSpec

_FLOAT32_BYTES = 4


class TokenIndex(nn.Module):
    """Scores the tokens before each query and chooses some; every rank has all of it, so that all choose alike."""

    def __init__(
        self, spec: TokenIndexSpec, attention: LatentAttentionSpec, hidden_size: int, layer: int, options: LayerOptions
    ) -> None:
        super().__init__()
        self.spec, self.options = spec, options
        self.name = f"{options.names.of_layer('attention', layer)}.indexer"
        heads, hidden = unsharded(spec.num_heads), unsharded(hidden_size)
        self.query = self._linear(unsharded(attention.query_rank or 0), heads.times(spec.size), "wq_b")
        self.key = self._linear(hidden, unsharded(spec.size), "wk")
        self.weights = self._linear(hidden, heads, "weights_proj")
        """Weights of the heads' scores, of each token."""
        self.norm = Norm(spec.size, NormSpec(spec.eps, "layer", bias=True), options)
        self.pools = PooledKeys(spec, hidden_size, options) if spec.pool > 1 else None

    def _linear(self, columns: Span, rows: Span, module: str) -> Linear:
        method = self.options.method_of(f"{self.name}.{module}")
        return Linear(columns, (rows,), bias=False, options=self.options, method=method)

    def forward(self, x: Tensor, latent: Tensor, rope: Rope | None, rows: TokenRows) -> Tensor:
        """Store the keys of x [T, hidden], and return the tokens that each query attends to, [T, k] int64.

        Queries are projected from `latent` [T, rank]. Where fewer than k tokens precede a query there are numbers above
        its position, which do not count.
        """
        spec, step = self.spec, rows.step
        key = cast("Tensor", self.norm(self.key(x))[0])
        key = self._rotated(key[:, None], rope)[:, 0]
        rows.write(key if self.pools is None else self.pools.with_logits(key, x))
        longest = max(step.contexts)
        if longest <= spec.kept:
            return torch.arange(longest, device=x.device).expand(len(x), -1)
        query = self._rotated(self.query(latent).unflatten(-1, (spec.num_heads, -1)), rope).float()
        weights = self.weights(x).float() * (spec.num_heads * spec.size) ** -0.5
        chosen = torch.empty(len(x), spec.most, dtype=torch.int64, device=x.device)
        keys = rows if self.pools is None else self.pools.of(rows)
        for tokens, _ in step.tiles(self._numbers):
            best = best_rows(
                keys, tokens, spec.kept // spec.pool, lambda own, keys: _scores(query[own], weights[own], keys)
            )
            chosen[tokens] = tokens_of_pools(best, step.positions[tokens], spec.pool)
        return chosen

    def _rotated(self, heads: Tensor, rope: Rope | None) -> Tensor:
        """Return [T, H, D] of which RoPE has rotated a part."""
        if rope is None:
            return heads
        apply_rope, size = rotate_pairs if self.spec.interleaved else rotate, rope.rotary_dim
        if self.spec.rotates_last:
            return torch.cat((heads[..., :-size], apply_rope(heads[..., -size:], rope)), dim=-1)
        return torch.cat((apply_rope(heads[..., :size], rope), heads[..., size:]), dim=-1)

    def _numbers(self, context: int) -> int:
        """Return how many float32 numbers the scores of one query take."""
        return 2 * (self.spec.num_heads + 2) * context

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint."""
        yield from self.query.tensors(f"{self.name}.wq_b")
        yield from self.key.tensors(f"{self.name}.wk")
        yield from self.weights.tensors(f"{self.name}.weights_proj")
        yield from self.norm.tensors(f"{self.name}.k_norm")
        if self.pools is not None:
            yield from self.pools.tensors(self.name)

    def scratch_numbers(self, max_tokens: int, context: int) -> int:
        """Return an upper bound of a step's float32 numbers for scores, one sequence's keys, and what is chosen."""
        chosen = 7 * max_tokens * min(self.spec.most, context)
        pooling = 0 if self.pools is None else 6 * context * self.spec.row_size
        return tile_numbers(max_tokens, self._numbers(context)) + 2 * context * (self.spec.size + 2) + chosen + pooling

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes, but for `scratch_numbers`."""
        queries, own = self.spec.num_heads * self.spec.size, self.spec.row_size + self.spec.num_heads
        return (queries + 2 * own) * (3 * self.options.dtype.itemsize + 5 * _FLOAT32_BYTES)


def _scores(query: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Return the scores [n, L] of keys [L, D] for queries [n, H, D] with weights [n, H]."""
    return torch.relu_(query @ keys.t()).mul_(weights[..., None]).sum(dim=1)


def attend_chosen(
    query: Tensor, keys: Tensor, chosen: Tensor, rows: TokenRows, spec: LatentAttentionSpec, sinks: Tensor | None
) -> Tensor:
    """Store `keys` [T, D], and return attention [T, H, latent] of queries [T, H, D] to `chosen` tokens [T, k]."""
    rows.write(keys)
    attended, step = query.new_empty(*query.shape[:2], spec.latent), rows.step
    for tokens, _ in step.tiles(lambda context: attending_numbers(spec, query.shape[1], context)):
        seen = chosen[tokens] <= step.positions[tokens, None]
        found = rows.read(step.sequence[tokens, None], chosen[tokens].where(seen, 0))
        attended[tokens] = attend_rows(query[tokens], found, seen, sinks, spec.scale)[..., : spec.latent]
    return attended


def attending_numbers(spec: LatentAttentionSpec, heads: int, context: int) -> int:
    """Return how many float32 numbers one query takes while its heads attend to chosen tokens of a context."""
    keys = context if spec.index is None else min(spec.index.most, context)
    return 4 * keys * spec.head_dim + 4 * (keys + 1) * heads + 6 * keys + 3 * heads * spec.head_dim
