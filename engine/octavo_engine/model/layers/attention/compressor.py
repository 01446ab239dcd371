"""Makes keys that stand for several tokens each, and the indexer that chooses among them (DeepSeek V4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope, rotate_pairs
from octavo_engine.attention.token_rows import TokenRows, best_rows
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.embeddings.rope import RotaryEmbedding
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import CompressedAttentionSpec, CompressorSpec, IndexerSpec

_FLOAT32_BYTES = 4


class Compressor(nn.Module):
    """Computes compressed keys, each from several tokens; every rank computes all of them.

    A token's projections are kept until all keys that it is a part of are complete.
    """

    def __init__(
        self,
        spec: CompressorSpec,
        size: int,
        hidden_size: int,
        name: str,
        attention: CompressedAttentionSpec,
        options: LayerOptions,
    ) -> None:
        """`size`: of its keys; `name`: of its module in a checkpoint."""
        super().__init__()
        self.spec, self.size, self.name, self.options = spec, size, name, options
        self._names = f"{name}.wkv", f"{name}.wgate"
        hidden, width = unsharded(hidden_size), unsharded(spec.projected(size))
        method = options.method_of(*self._names)
        self.projections = Linear(hidden, (width, width), bias=False, options=options, method=method)
        self.biases = parameter(spec.rate, width.size, dtype=torch.float32, device=options.device)
        """Added to the gates of a window's tokens."""
        self.norm = Norm(size, attention.norm, options)
        self.rotation = RotaryEmbedding(attention.rope, attention.rotary_dim, options.device)

    def forward(self, x: Tensor, pending: TokenRows, compressed: TokenRows) -> None:
        """Store projections of x [T, hidden] in `pending`, and the keys that this step completes in `compressed`."""
        pending.write(self.projections(x))
        step = compressed.step
        if not len(step.completing):
            return
        last = step.positions[step.completing]
        back = torch.arange(self.spec.window - 1, -1, -1, device=x.device)
        positions = last[:, None] - back
        rows = pending.read(step.sequence[step.completing][:, None], positions.clamp(min=0)).float()
        shape = len(last), -1, self.spec.rate, rows.shape[-1] // 2
        values, gates = (part.reshape(shape) for part in rows.chunk(2, dim=-1))
        values, gates = self._of_window(values), self._of_window(gates + self.biases)
        weights = gates.masked_fill(positions[..., None] < 0, -torch.inf).softmax(dim=1)
        keys = cast("Tensor", self.norm((weights * values).sum(dim=1).to(x.dtype))[0])
        rope = self.rotation(last - (self.spec.rate - 1))
        compressed.write(rotate_pairs(keys[:, None], rope)[:, 0])

    def _of_window(self, rows: Tensor) -> Tensor:
        """Return the numbers of each window's key, [N, window, size], out of `rows` [N, 1 or 2, rate, projected].

        Those that a token adds to the next window's key precede those that it adds to its own.
        """
        if not self.spec.overlapping:
            return rows[:, 0]
        return torch.cat((rows[:, 0, :, : self.size], rows[:, 1, :, self.size :]), dim=1)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint."""
        yield from self.projections.tensors(*self._names)
        yield plain(f"{self.name}.ape", self.biases, unsharded(self.spec.rate))
        yield from self.norm.tensors(f"{self.name}.norm")

    def sequence_bytes(self) -> int:
        """Return an upper bound of what one key of a sequence takes while it is made."""
        rows = 2 * self.spec.projected(self.size) * self.spec.window
        return rows * (self.options.dtype.itemsize + 4 * _FLOAT32_BYTES) + 4 * self.size * _FLOAT32_BYTES

    def step_bytes(self) -> int:
        """Return an upper bound of what one token takes in it, its share of a key included."""
        projected = 4 * self.spec.projected(self.size) * self.options.dtype.itemsize
        return projected + -(-self.sequence_bytes() // self.spec.rate)


class Indexer(nn.Module):
    """Scores compressed keys for each query and chooses some; every rank has all of it, so that all choose alike."""

    def __init__(
        self,
        spec: IndexerSpec,
        hidden_size: int,
        layer: int,
        attention: CompressedAttentionSpec,
        compressor: CompressorSpec,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        self.name = name = options.names.of_layer("indexer", layer)
        self.compressor = Compressor(compressor, spec.size, hidden_size, f"{name}.compressor", attention, options)
        heads, hidden = unsharded(spec.num_heads), unsharded(hidden_size)
        self.query = Linear(
            unsharded(attention.query_rank),
            (heads.times(spec.size),),
            bias=False,
            options=options,
            method=options.method_of(f"{name}.wq_b"),
        )
        method = options.method_of(f"{name}.weights_proj")
        self.weights = Linear(hidden, (heads,), bias=False, options=options, method=method)

    def forward(self, x: Tensor, latent: Tensor, rope: Rope, context: StepContext) -> Tensor:
        """Store the keys of x [T, hidden]; returns float32 queries [T, H, D] followed by their weights [T, H, 1]."""
        rows = (context.rows_of(self.layer, f"index_{name}") for name in ("pending", "compressed"))
        self.compressor(x, *rows)
        query = rotate_pairs(self.query(latent).view(len(x), self.spec.num_heads, -1), rope).float()
        weights = self.weights(x).float() * self.spec.num_heads**-0.5
        return torch.cat((query, weights[..., None]), dim=-1)

    def choose(self, index_query: Tensor, tokens: slice, longest: int, compressed: TokenRows) -> Tensor:
        """Return the keys that the step's `tokens` attend to, [n, k] int64; where fewer exist, also some that do not.

        `index_query` is `forward`'s result for the whole step; `longest` is the longest context of these tokens.
        """
        most, kept = longest // compressed.step.rate, self.spec.kept
        if most <= kept:
            return torch.arange(most, device=index_query.device).expand(tokens.stop - tokens.start, -1)
        return best_rows(compressed, tokens, kept, lambda own, keys: self._scores(index_query[own], keys))

    def _scores(self, index_query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores [n, L] of keys [L, D] for queries followed by their weights, [n, H, D + 1]."""
        query, weights = index_query[..., :-1], index_query[..., -1:]
        scores = torch.relu_(query @ keys.t()).mul_(self.spec.size**-0.5)
        return scores.mul_(weights).sum(dim=1)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the module's tensors in a checkpoint."""
        yield from self.compressor.tensors()
        yield from self.query.tensors(f"{self.name}.wq_b")
        yield from self.weights.tensors(f"{self.name}.weights_proj")

    def step_bytes(self) -> int:
        """Return an upper bound of what one token takes in it, but for the scores."""
        spec = self.spec
        query = spec.num_heads * (spec.size + 1)
        return self.compressor.step_bytes() + 2 * query * self.options.dtype.itemsize + 5 * query * _FLOAT32_BYTES

    def score_numbers(self, keys: int) -> int:
        """Return how many float32 numbers one token takes for the scores of so many compressed keys."""
        return 2 * (self.spec.num_heads + 2) * keys + 2 * self.spec.num_heads * self.spec.size
