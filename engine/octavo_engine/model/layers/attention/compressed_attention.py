"""Attention to a window of tokens and to keys that stand for several tokens each (DeepSeek V4).

Each query gathers the keys that it attends to, whether it decodes or belongs to a prompt: the window before it, and the
compressed keys of the tokens before it, or those that an indexer chooses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope, rotate_pairs
from octavo_engine.attention.token_rows import attend_rows, tile_numbers
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, plain, unsharded
from octavo_engine.model.layers.attention.compressor import Compressor, Indexer
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.dequantized import Dequantized, dequantized_tensors
from octavo_engine.model.quantization.unquantized import UNQUANTIZED, parameter
from octavo_engine.model.spec import CompressedAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_NARROW = ("query_down", "key")


class CompressedAttention(nn.Module):
    """Attention to a window and to compressed keys.

    Ranks have a part of the heads, by the groups that are projected together; every rank has all keys.
    """

    def __init__(
        self,
        spec: CompressedAttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        self.heads = span(shard.heads(spec), spec.num_heads, "query heads")
        self.groups = span(shard.kv_heads(spec), spec.output_groups, "groups of heads")
        rank, key = unsharded(spec.query_rank, "q_lora_rank"), unsharded(spec.head_dim)
        stored = tuple(options.stored_by(options.names.of_layer(role, layer)) for role in _NARROW)
        self.narrow = Linear(hidden, (rank, key), bias=False, options=options, method=Dequantized(stored))
        self.query_norm, self.key_norm = Norm(rank.size, spec.norm, options), Norm(key.size, spec.norm, options)
        queries, method = self.heads.times(spec.head_dim), options.method(layer, "query_up")
        self.query = Linear(rank, (queries,), bias=False, options=options, method=method)
        of_group = self.heads.size // self.groups.size * spec.head_dim
        self.group_output = parameter(
            self.groups.size, spec.output_rank, of_group, dtype=options.dtype, device=options.device
        )
        """The projection of the results of each group's heads."""
        inner, method = self.groups.times(spec.output_rank), options.method(layer, "output")
        self.output = Linear(inner, (hidden,), bias=False, options=options, method=method, summed=True)
        self.sinks = parameter(self.heads.size, dtype=torch.float32, device=options.device)
        compressor, name = spec.compressor, options.names.of_layer("compressor", layer)
        self.compressor = self.indexer = None
        if compressor is not None:
            self.compressor = Compressor(compressor, spec.head_dim, hidden_size, name, spec, options)
            if (indexer := compressor.indexer) is not None:
                self.indexer = Indexer(indexer, hidden_size, layer, spec, compressor, options)

    @property
    def input_scaling(self) -> Scaling | None:
        """None: its linears quantize the input themselves, as several may read it."""
        return None

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        values, angles, spec = cast("Tensor", x), cast("Rope", rope), self.spec
        latent, key = self.narrow(values).split((spec.query_rank, spec.head_dim), dim=-1)
        latent = cast("Tensor", self.query_norm(latent.contiguous())[0])
        key = cast("Tensor", self.key_norm(key.contiguous())[0])
        keys = context.rows_of(self.layer, "keys")
        keys.write(rotate_pairs(key[:, None], angles)[:, 0])
        if self.compressor is not None:
            rows = (context.rows_of(self.layer, name) for name in ("pending", "compressed"))
            self.compressor(values, *rows)
        index_query = None if self.indexer is None else self.indexer(values, latent, angles, context)
        query = self.query(latent).view(len(values), self.heads.size, -1)
        query = rotate_pairs(query * _inverse_rms(query, spec.norm.eps), angles)
        attended = torch.empty_like(query)
        for tokens, longest in keys.step.tiles(self._numbers):
            attended[tokens] = self._attend(query[tokens], index_query, tokens, longest, context)
        attended = rotate_pairs(attended, angles, back=True)
        grouped = attended.view(len(values), self.groups.size, -1).transpose(0, 1)
        grouped = torch.bmm(grouped, self.group_output.transpose(1, 2)).transpose(0, 1)
        return self.output.add_to(residual, grouped.reshape(len(values), -1))

    def _attend(
        self, query: Tensor, index_query: Tensor | None, tokens: slice, longest: int, context: StepContext
    ) -> Tensor:
        """Return the result [n, H, D] of the step's `tokens`, none of whose contexts is longer than `longest`."""
        keys = context.rows_of(self.layer, "keys")
        sequence, positions = keys.step.sequence[tokens, None], keys.step.positions[tokens, None]
        back = torch.arange(min(self.spec.window, longest), device=query.device)
        rows = positions - back
        seen, found = rows >= 0, keys.read(sequence, rows.clamp(min=0))
        if self.compressor is not None:
            compressed = context.rows_of(self.layer, "compressed")
            chosen = self._chosen(index_query, tokens, longest, context)
            there = (positions + 1) // compressed.step.rate
            valid = chosen < there
            entries = compressed.read(sequence, chosen.where(valid, 0))
            seen, found = torch.cat((seen, valid), dim=1), torch.cat((found, entries), dim=1)
        return attend_rows(query, found, seen, self.sinks, self.spec.scale)

    def _chosen(self, index_query: Tensor | None, tokens: slice, longest: int, context: StepContext) -> Tensor:
        """Return the compressed keys that the step's `tokens` attend to, if they exist: [n, k] or [1, k] int64."""
        name = "compressed" if self.indexer is None else "index_compressed"
        rows = context.rows_of(self.layer, name)
        if self.indexer is None or index_query is None:
            return torch.arange(longest // rows.step.rate, device=rows.tensor.device)[None]
        return self.indexer.choose(index_query, tokens, longest, rows)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer, spec = self.options.names, self.layer, self.spec
        yield from self.narrow.tensors(*(names.of_layer(role, layer) for role in _NARROW))
        yield from self.query_norm.tensors(names.of_layer("query_latent_norm", layer))
        yield from self.key_norm.tensors(names.of_layer("key_norm", layer))
        yield from self.query.tensors(names.of_layer("query_up", layer))
        name, rows = names.of_layer("output_down", layer), self.groups.times(spec.output_rank)
        target = self.group_output.flatten(0, 1)
        yield from dequantized_tensors(self.options.stored_by(name), name, target, rows, self._columns())
        yield from self.output.tensors(names.of_layer("output", layer))
        yield plain(names.of_layer("sinks", layer), self.sinks, self.heads)
        for part in (self.compressor, self.indexer):
            if part is not None:
                yield from part.tensors()

    def _columns(self) -> Span:
        """Return this rank's columns of each of its groups' projections: those of some of the heads, or of all."""
        each = self.spec.num_heads // self.spec.output_groups
        start, size = self.heads.start - self.groups.start * each, self.heads.size // self.groups.size
        return Span(start, size, each, "heads of a group").times(self.spec.head_dim)

    def _numbers(self, context: int) -> int:
        """Return how many float32 numbers a query in a context of this length takes while it attends."""
        spec, scores = self.spec, 0
        keys = min(spec.window, context)
        if spec.compressor is not None:
            there = context // spec.compressor.rate
            if self.indexer is not None and there > self.indexer.spec.kept:
                scores, there = self.indexer.score_numbers(there), self.indexer.spec.kept
            keys += there
        return max(1, 4 * keys * spec.head_dim + 4 * (keys + 1) * self.heads.size + 6 * keys, scores)

    def scratch_bytes(self, max_tokens: int, max_context: int) -> int:
        """Return an upper bound of a step's bytes while queries attend, with the compressed keys of one sequence."""
        compressor, scored = self.spec.compressor, 0
        if compressor is not None and compressor.indexer is not None:
            scored = max_context // compressor.rate * (2 * compressor.indexer.size + 4)
        return _FLOAT32_BYTES * (tile_numbers(max_tokens, self._numbers(max_context)) + scored)

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: a compressed key while it is computed."""
        indexed = None if self.indexer is None else self.indexer.compressor
        return sum(part.sequence_bytes() for part in (self.compressor, indexed) if part is not None)

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes, its input included, but not what `scratch_bytes` counts."""
        spec, size = self.spec, self.options.dtype.itemsize
        hidden, rows = self.narrow.columns.size, sum(self.narrow.parts)
        queries, inner = self.heads.size * spec.head_dim, self.groups.size * spec.output_rank
        parts = [part.step_bytes() for part in (self.compressor, self.indexer) if part is not None]
        rotated = 4 * (self.heads.size + 1) * spec.rotary_dim + 3 * rows + queries
        quantized = 0 if self.query.method is UNQUANTIZED else max(rows, hidden) + hidden * size
        own = (hidden + 3 * rows + 5 * queries + 3 * inner) * size + rotated * _FLOAT32_BYTES + quantized
        return own + sum(parts)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return one divided by the root mean square of each head of x [T, H, D], in x's dtype; [T, H, 1]."""
    return torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)
