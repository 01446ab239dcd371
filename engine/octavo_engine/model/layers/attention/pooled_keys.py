"""Keys of pools. A pool is some neighbouring tokens, which an indexer scores and chooses together (GLM-5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from octavo_engine.attention.token_rows import TokenRows
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import TokenIndexSpec


class PooledKeys(nn.Module):
    """The weights by which a pool's key is a mean of its tokens' keys: for each number a softmax over the tokens."""

    def __init__(self, spec: TokenIndexSpec, hidden_size: int, options: LayerOptions) -> None:
        super().__init__()
        self.spec = spec
        self.projection = parameter(spec.size, hidden_size, dtype=options.dtype, device=options.device)
        self.places = parameter(spec.pool, spec.size, dtype=torch.float32, device=options.device)
        """What is added to the logits by a token's place in its pool."""

    def with_logits(self, keys: Tensor, x: Tensor) -> Tensor:
        """Return what is cached of tokens x [T, hidden]: their keys and the logits of their weights, [T, 2 * size]."""
        return torch.cat((keys, nn.functional.linear(x, self.projection)), dim=-1)

    def of(self, rows: TokenRows) -> PooledRows:
        """Return the keys of all complete pools of the tokens in `rows`."""
        return PooledRows(rows.tensor, replace(rows.step, rate=self.spec.pool), rows, self.places)

    def tensors(self, indexer: str) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint; `indexer`: the name of the indexer that has it."""
        size, pool = unsharded(self.spec.size), unsharded(self.spec.pool)
        yield plain(f"{indexer}.index_kpool_compress_gate", self.projection, size)
        yield plain(f"{indexer}.index_kpool_compress_ape", self.places, pool)


@dataclass(frozen=True, slots=True)
class PooledRows(TokenRows):
    """Rows that stand for a pool of tokens each; `step.rate` is the number of its tokens."""

    tokens: TokenRows
    """What is cached of the tokens."""
    places: Tensor
    """[pool, size] float32"""

    def read(self, sequence: Tensor, rows: Tensor) -> Tensor:
        """Return the keys of pools `rows` [P] of sequences `sequence` [P], both int64; [P, size] float32."""
        pool, size = self.places.shape
        own = rows[:, None] * pool + torch.arange(pool, device=rows.device)
        cached: Tensor = self.tokens.read(sequence[:, None], own)
        keys, logits = cached[..., :size], cached[..., size:]
        weights = (logits.float() + self.places).softmax(dim=1).to(keys.dtype)
        pooled: Tensor = (weights * keys).sum(dim=1)
        return pooled


def tokens_of_pools(pools: Tensor, positions: Tensor, size: int) -> Tensor:
    """Return the tokens of pools [n, k], and those after each query's last complete pool; [n, (k + 1) * size - 1].

    Tokens that do not count have numbers above the query's position: those of pools that are not complete at it. With
    pools of one token these are the pools themselves.
    """
    if size == 1:
        return pools
    complete = (positions[:, None] + 1) // size
    places = torch.arange(size, device=pools.device)
    never = positions[:, None, None] + 1
    tokens = torch.where((pools < complete)[..., None], pools[..., None] * size + places, never).flatten(1)
    return torch.cat((tokens, complete * size + places[:-1]), dim=1)
