"""Multi-head latent attention over a compressed cache, its up-projections absorbed (arXiv 2405.04434).

A token's cache is one vector for all heads: a latent, from which each head's key and value would be projected, and a
rotated part that all heads' keys share. Queries are projected into the latents' space instead, and what they attend to
is projected out of it: then nothing is computed for the tokens of a context again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope, rotate
from octavo_engine.attention.token_rows import tile_numbers
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, ignored, plain, unsharded
from octavo_engine.model.layers.adapters.latent_lora import LatentLora, added
from octavo_engine.model.layers.adapters.lora import LoraBatch
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.attention.token_index import TokenIndex, attend_chosen, attending_numbers
from octavo_engine.model.layers.embeddings.rope import head_order
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.dequantized import Dequantized, dequantized_tensors
from octavo_engine.model.quantization.unquantized import UNQUANTIZED, parameter
from octavo_engine.model.spec import LatentAttentionSpec, LearntQueryScaling, TokenIndexSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class LatentAttention(CachedAttention):
    """Multi-head latent attention. Each rank has some of the heads, and all of the cache."""

    def __init__(
        self,
        spec: LatentAttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "query heads")
        hidden, rank = unsharded(hidden_size, "hidden_size"), spec.query_rank
        queries, values = self.heads.times(spec.key_dim), self.heads.times(spec.value_dim)
        self._low_rank = () if rank is None else (unsharded(rank, "q_lora_rank"),)
        cached = (unsharded(spec.head_dim),) if spec.kv_of_layer is None else ()
        self._narrow = ("query_down",) * len(self._low_rank) + ("latent",) * len(cached)
        self.compressed = self._compressed(hidden, cached)
        self.query_norm = None if rank is None else Norm(rank, spec.norm, options)
        self.latent_norm = Norm(spec.latent, spec.norm, options) if cached else None
        order = (_order(spec, spec.plain_dim, self.heads.size, spec.value_dim if spec.query_gate else 0),)
        source = self._low_rank[0] if self._low_rank else hidden
        if spec.query_gate:
            source, queries = source.times(2), self.heads.times(spec.key_dim + spec.value_dim)
        self._query_role = "query_up" if self._low_rank else "query"
        method = options.method(layer, self._query_role)
        self.query = Linear(source, (queries,), bias=False, options=options, method=method, orders=order)
        self.up = parameter(
            self.heads.size, spec.plain_dim + spec.value_dim, spec.latent, dtype=options.dtype, device=options.device
        )
        """The projection from a latent to each head's key, without its rotated part, and value."""
        self.lora: LatentLora | None = None
        """What adapters add to that projection, where they are served."""
        method = options.method(layer, "output")
        self.output = Linear(values, (hidden,), bias=spec.bias, options=options, method=method, summed=True)
        gate, method = spec.output_gate, options.method(layer, "output_gate")
        gates = self.heads if gate is not None and gate.per_head else values
        self.gate = None if gate is None else Linear(hidden, (gates,), bias=False, options=options, method=method)
        self.rotated_norm = Norm(spec.rotary_dim, spec.norm, options) if spec.rotated_norm else None
        sinks = parameter(self.heads.size, dtype=torch.float32, device=options.device) if spec.sinks else None
        self.sinks = sinks
        self.variant = AttentionVariant(spec.scale, sinks=sinks)
        learnt = isinstance(spec.query_scaling, LearntQueryScaling)
        self.query_factors = (
            parameter(2, self.heads.size, dtype=options.dtype, device=options.device) if learnt else None
        )
        """Each head's slope and offset of the factor of queries."""
        chooses = spec.index is not None and spec.index.of_layer is None
        self.index = TokenIndex(spec.index, spec, hidden_size, layer, options) if spec.index and chooses else None

    def _compressed(self, hidden: Span, cached: tuple[Span, ...]) -> Linear | None:
        """Return the projection to the queries' latent and to what is cached; None: the layer has neither.

        It is dequantized: it is small, and its sizes are rarely complete blocks of a quantization scheme.
        """
        spec, options = self.spec, self.options
        if not self._narrow:
            return None
        stored = tuple(options.stored_by(options.names.of_layer(role, self.layer)) for role in self._narrow)
        orders = *(None for _ in self._low_rank), *(_order(spec, spec.latent, 1) for _ in cached)
        parts, method = (*self._low_rank, *cached), Dequantized(stored)
        return Linear(hidden, parts, bias=spec.bias, options=options, method=method, orders=orders)

    @property
    def input_scaling(self) -> Scaling | None:
        """None: its linears quantize the input themselves, as two may read it."""
        return None

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        spec, compressed = self.spec, None if self.compressed is None else self.compressed(x)
        source = self._query_source(x, compressed)
        adapters = None if self.lora is None else self.lora.of_step()
        query, gate = self._queries(source, rope, adapters)
        if spec.kv_of_layer is not None:
            attended = context.attend_shared(spec.kv_of_layer, query, self.variant, None, None)
        else:
            keys = self._keys(cast("Tensor", compressed)[:, -spec.head_dim :], rope)
            if spec.index is None:
                attended = context.attend_latent(self.layer, query, keys, self.variant)
            else:
                chosen = self._chosen(x, source, rope, context)
                rows = context.rows_of(self.layer, "latents")
                attended = attend_chosen(query, keys[:, 0], chosen, rows, spec, self.sinks)
        del query  # the largest tensor here, as long as a latent for each head
        values = self._values(attended, adapters)
        del attended
        if self.gate is not None:
            values = values * self.gate(x).float().sigmoid().to(values.dtype).view(*values.shape[:2], -1)
        if gate is not None:
            values = values * gate.float().sigmoid().to(values.dtype)
        return self.output.add_to(residual, values.reshape(len(values), -1))

    def _queries(
        self, source: Tensor | Quantized, rope: Rope | None, adapters: LoraBatch | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return queries [T, heads, latent + rotary] of their projection's input, and gates [T, heads, value]."""
        spec = self.spec
        heads = self.query(source).unflatten(-1, (self.heads.size, -1))
        plain_part, rotated = heads[..., : spec.plain_dim], heads[..., spec.plain_dim : spec.key_dim]
        if rope is not None:
            rotated = rotate(rotated, rope)
        absorbed = torch.bmm(plain_part.transpose(0, 1), self.up[:, : spec.plain_dim]).transpose(0, 1)
        if self.lora is not None and adapters is not None:
            absorbed = added(self.lora.query, absorbed, plain_part, adapters)
        gate = heads[..., spec.key_dim :] if spec.query_gate else None
        return self._scaled_by_position(torch.cat((absorbed, rotated), dim=-1), rope), gate

    def _values(self, attended: Tensor, adapters: LoraBatch | None) -> Tensor:
        """Project what heads attend to, [T, heads, latent], to their values [T, heads, value]."""
        values = torch.bmm(attended.transpose(0, 1), self.up[:, self.spec.plain_dim :].transpose(1, 2)).transpose(0, 1)
        return values if self.lora is None or adapters is None else added(self.lora.value, values, attended, adapters)

    def _chosen(
        self, x: Tensor | Quantized, source: Tensor | Quantized, rope: Rope | None, context: StepContext
    ) -> Tensor:
        """Return the tokens that each query attends to, [T, k] int64: the layer's own choice or an earlier layer's.

        `source` begins with the queries' latent.
        """
        index = cast("TokenIndexSpec", self.spec.index)
        if self.index is None:
            return context.chosen[cast("int", index.of_layer)]
        latent = cast("Tensor", source)[:, : self.spec.query_rank].contiguous()
        rows = context.rows_of(self.layer, "index")
        context.chosen.clear()  # later layers read the last choice alone
        context.chosen[self.layer] = self.index(cast("Tensor", x), latent, rope, rows)
        return context.chosen[self.layer]

    def _keys(self, cached: Tensor, rope: Rope | None) -> Tensor:
        """Return what is cached, `cached` [T, latent + rotary] normalised and rotated; [T, 1, latent + rotary]."""
        norm, shared = cast("Norm", self.latent_norm), cached[:, self.spec.latent :]
        latent = _scaled(
            cast("Tensor", norm(cached[:, : self.spec.latent].contiguous())[0]), self.spec.latent_scales[1]
        )
        if self.rotated_norm is not None:
            shared = cast("Tensor", self.rotated_norm(shared.contiguous())[0])
        rotated = shared[:, None] if rope is None else rotate(shared[:, None], rope)
        return torch.cat((latent[:, None], rotated), dim=-1)

    def _scaled_by_position(self, query: Tensor, rope: Rope | None) -> Tensor:
        """Return queries [T, heads, D] times the factors that grow with their positions."""
        if rope is None or rope.query_scale is None:
            return query
        scale = rope.query_scale.to(query.dtype)
        if self.query_factors is not None:
            slope, offset = self.query_factors[..., None]
            scale = slope * scale + offset
        return query * scale

    def _query_source(self, x: Tensor | Quantized, compressed: Tensor | None) -> Tensor | Quantized:
        """Return the input of the queries' projection: their latent, or the layer's input x."""
        spec = self.spec
        if self.query_norm is None or compressed is None or spec.query_rank is None:
            return x
        latent = compressed[:, : spec.query_rank].contiguous()
        normed = _scaled(cast("Tensor", self.query_norm(latent)[0]), spec.latent_scales[0])
        return torch.cat((normed, latent), dim=-1) if spec.query_gate else normed

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer, spec = self.options.names, self.layer, self.spec
        if self.compressed is not None:
            yield from self.compressed.tensors(*(names.of_layer(role, layer) for role in self._narrow))
        yield from self.query.tensors(names.of_layer(self._query_role, layer))
        if self.query_norm is not None:
            yield from self.query_norm.tensors(names.of_layer("query_latent_norm", layer))
        if self.latent_norm is not None:
            yield from self.latent_norm.tensors(names.of_layer("latent_norm", layer))
        yield from self._up_tensors()
        yield from self.output.tensors(names.of_layer("output", layer))
        if self.gate is not None:
            yield from self.gate.tensors(names.of_layer("output_gate", layer))
        if self.rotated_norm is not None:
            order = head_order(spec.rope, spec.rotary_dim)
            yield from self.rotated_norm.tensors(names.of_layer("rotated_norm", layer), order=order)
        if self.query_factors is not None:
            name = names.of_layer("query_scaling", layer)
            yield from (plain(f"{name}.{end}", self.query_factors[row], self.heads) for row, end in enumerate("sb"))
        if self.sinks is not None:
            yield plain(names.of_layer("sinks", layer), self.sinks, self.heads)
        if self.index is not None:
            yield from self.index.tensors()
        yield ignored(f"{names.of_layer('attention', layer)}.rotary_emb.inv_freq")

    def _up_tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the projection from latents to keys and values: one tensor, or one each with an item for each head."""
        names, layer, spec = self.options.names, self.layer, self.spec
        if names.splits_latent_up:
            keys, values = self.up[:, : spec.plain_dim].transpose(1, 2), self.up[:, spec.plain_dim :]
            yield plain(f"{names.of_layer('latent_key_up', layer)}.weight", keys, self.heads)
            yield plain(f"{names.of_layer('latent_value_up', layer)}.weight", values, self.heads)
            return
        rows, columns = self.heads.times(spec.plain_dim + spec.value_dim), unsharded(spec.latent)
        name, target = names.of_layer("latent_up", layer), self.up.view(-1, spec.latent)
        yield from dequantized_tensors(self.options.stored_by(name), name, target, rows, columns)

    def scratch_bytes(self, max_tokens: int, max_context: int) -> int:
        """Return an upper bound of a step's bytes while queries choose tokens and attend to them; 0 without a choice.

        What they take while they attend to all tokens is the attention backend's.
        """
        if self.spec.index is None:
            return 0
        attending = tile_numbers(max_tokens, attending_numbers(self.spec, self.heads.size, max_context))
        choosing = 0 if self.index is None else self.index.scratch_numbers(max_tokens, max_context)
        return _FLOAT32_BYTES * (attending + choosing)

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        spec, size, heads = self.spec, self.options.dtype.itemsize, self.heads.size
        hidden, rows = sum(self.output.parts), 0 if self.compressed is None else sum(self.compressed.parts)
        narrow = (3 + (spec.latent_scales != (1, 1))) * rows + 2 * spec.head_dim + 3 * rows * spec.query_gate
        projecting = 2 * spec.key_dim + spec.latent + spec.head_dim * (1 + (spec.query_scaling is not None))
        each = max(projecting, 2 * spec.latent + 3 * spec.value_dim) + spec.key_dim * spec.query_gate
        gates = 0 if spec.output_gate is None else 1 if spec.output_gate.per_head else spec.value_dim
        each += (spec.value_dim + gates * _FLOAT32_BYTES) * (gates > 0)
        each += 4 * spec.value_dim * _FLOAT32_BYTES * spec.query_gate
        # While queries are rotated, and while the latents of keys are normalised beside the projected queries.
        rotating = (4 * (heads + 1) + 3 * spec.rotated_norm) * spec.rotary_dim + 3 * rows
        rotating = heads * max(spec.key_dim, spec.head_dim) * size + rotating * _FLOAT32_BYTES
        quantized = 0 if self.query.method is UNQUANTIZED else max(rows, hidden) + hidden * size
        index = 0 if self.index is None else self.index.step_bytes()
        return (hidden + narrow) * size + max(heads * each * size, rotating) + quantized + index


def _scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1 else x * scale


def _order(spec: LatentAttentionSpec, before: int, heads: int, behind: int = 0) -> Tensor | None:
    """Return the row that each stored row becomes, None for itself.

    `before` rows of a head are not rotated, nor are `behind`.
    """
    order = head_order(spec.rope, spec.rotary_dim)
    if order is None:
        return None
    rest = before + len(order)
    parts = torch.arange(before, device="cpu"), before + order, torch.arange(rest, rest + behind, device="cpu")
    one = torch.cat(parts)
    return (torch.arange(heads, device="cpu")[:, None] * len(one) + one).view(-1)
