"""Grouped-query attention over the paged cache (arXiv 2305.13245)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.alibi import ALiBi, alibi_slopes
from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.bidirectional import DistanceTerms, terms_of_buckets
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.qk_norm import QKNorm, WholeProjection
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, Span, ignored, plain, unsharded, write
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.embeddings.rope import head_order, row_order
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.low_rank import LowRank
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.norms.sharded_norm import ShardedNorm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import ALiBiSpec, AttentionSpec, QKNormSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class Attention(CachedAttention):
    """A layer's projections and norms of heads; an attention backend computes the attention between them."""

    def __init__(
        self,
        spec: AttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
        *,
        output_size: int | None = None,
    ) -> None:
        """`output_size` is the size of the result; None: `hidden_size`, the size of the input."""
        super().__init__(layer, options)
        self.spec = spec
        shard, size = options.ranks.shard, spec.head_dim
        self.heads = span(shard.heads(spec), spec.num_heads, "query heads")
        self.kv_heads = span(shard.kv_heads(spec), spec.num_kv_heads, "KV heads")
        query, key, hidden = self.heads.times(size), self.kv_heads.times(size), unsharded(hidden_size, "hidden_size")
        self.value_dim = size if spec.value_dim is None else spec.value_dim
        value, attended = self.kv_heads.times(self.value_dim), self.heads.times(self.value_dim)
        self.order = head_order(spec.rope, size)
        orders = (*(row_order(spec.rope, size, heads.size) for heads in (self.heads, self.kv_heads)), None)
        count = 1 if spec.kv_of_layer is not None else 2 if spec.value_is_key else 3
        self.gated_by_query = spec.output_gate is not None and spec.output_gate.with_query
        self.roles = ("query", "key", "value")[:count] + ("output_gate",) * self.gated_by_query
        self.qkv = Linear(
            hidden,
            (query, key, value)[:count] + (query,) * self.gated_by_query,
            bias=spec.qkv_bias,
            options=options,
            method=options.method(layer, *self.roles),
            orders=orders[:count] + (None,) * self.gated_by_query,
            layout=options.names.qkv_layout if count == 3 else None,
        )
        result = unsharded(output_size or hidden_size, "hidden_size")
        method = options.method(layer, "output")
        self.output = Linear(attended, (result,), bias=spec.output_bias, options=options, method=method, summed=True)
        rank, parts = spec.adapter_rank, ((query,), (key,), (value,))
        self.adapters = None if rank is None else LowRank(hidden, parts, rank, options)
        self.gate = self._output_gate(hidden, query)
        self.gate_bias = self._gate_bias()
        eps = None if spec.output_norm is None else spec.output_norm.eps
        self.output_norm = None if eps is None else ShardedNorm(query, eps, options)
        self.query_norm = self._norm(spec.qk_norm, self.heads)
        self.key_norm = self._norm(spec.qk_norm, self.kv_heads) if spec.kv_of_layer is None else None
        self.value_norm = None if spec.value_norm is None else Norm(size, spec.value_norm, options)
        self.sinks = parameter(self.heads.size, dtype=options.dtype, device=options.device) if spec.sinks else None
        self.distance_terms = self._distance_terms()
        """[buckets, heads]: the terms added to scores by distance, which the first layer has for all; None: none."""
        self.variant = AttentionVariant(spec.scale, spec.softcap, self.sinks, self._alibi(spec.alibi))

    def _output_gate(self, hidden: Span, query: Span) -> Linear | None:
        """Return the projection of the output gate; None: there is no gate, or the query's projection has it."""
        spec, options = self.spec.output_gate, self.options
        if spec is None or spec.with_query:
            return None
        gates = self.heads if spec.per_head else query
        method = options.method(self.layer, "output_gate")
        return Linear(hidden, (gates,), bias=False, options=options, method=method)

    def _gate_bias(self) -> Tensor | None:
        """Return the number that each head adds to its gates [H]; None: nothing is added."""
        if self.spec.output_gate is None or not self.spec.output_gate.head_bias:
            return None
        return parameter(self.heads.size, dtype=self.options.dtype, device=self.options.device)

    def _distance_terms(self) -> Tensor | None:
        if self.spec.distance_buckets is None or self.layer:
            return None
        dtype, device = self.options.dtype, self.options.device
        return parameter(self.spec.distance_buckets, self.heads.size, dtype=dtype, device=device)

    def _norm(self, spec: QKNormSpec | None, heads: Span) -> Norm | None:
        """Return the norm of the query's heads or of the key's."""
        if spec is None:
            return None
        size, shared = self.spec.head_dim, spec.per_head and not spec.own_weights
        return Norm(size if shared else (heads.size, size), spec.norm, self.options)

    def _alibi(self, spec: ALiBiSpec | None) -> ALiBi | None:
        """Return the slopes of this rank's heads."""
        if spec is None:
            return None
        slopes = alibi_slopes(self.heads.total, spec.max_bias)[self.heads.slice]
        return ALiBi(slopes.to(self.options.device), spec.factor, spec.rounded)

    @property
    def score_terms(self) -> DistanceTerms | None:
        """The terms of scores by distance where attention is bidirectional; None: there are none."""
        if self.distance_terms is not None:
            return terms_of_buckets(self.distance_terms)
        return None if self.variant.alibi is None else self.variant.alibi.by_distance

    @property
    def qk_norm(self) -> QKNorm | None:
        """The norms of query and key; None: they are not normalised."""
        spec, query, key = self.spec.qk_norm, self.query_norm, self.key_norm
        if spec is None or query is None or key is None:
            return None
        projection = None if spec.per_head else self._projection()
        return QKNorm(query.weights, key.weights, projection, spec.after_rope, self.spec.clip)

    def _projection(self) -> WholeProjection:
        """Return the widths and the sum over ranks for norms over all ranks' heads; shared KV heads count once."""
        size, ranks = self.spec.head_dim, self.options.ranks
        counts = ranks.shard.first_with_kv_heads(self.spec)

        def all_reduce(squares: Tensor) -> Tensor:
            if not counts:
                squares[:, 1] = 0
            return ranks.all_reduce(squares)

        return WholeProjection(self.heads.total * size, self.kv_heads.total * size, all_reduce)

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized; None: not at all."""
        return None if self.adapters is not None else self.qkv.input_scaling

    def forward(
        self,
        x: Tensor | Quantized,
        residual: Tensor | None,
        rope: Rope | None,
        context: StepContext,
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        heads = self.qkv(x) if self.adapters is None else self.qkv(x) + self.adapters(cast("Tensor", x))
        if self.spec.clip is not None and self.spec.qk_norm is None:
            heads.clamp_(-self.spec.clip, self.spec.clip)
        if self.value_dim < self.spec.head_dim:
            heads = self._widened(heads)
        heads = heads.view(len(heads), -1, self.spec.head_dim)
        gates: Tensor | None = None
        if self.gated_by_query:
            heads, gates = heads[:, : -self.heads.size].contiguous(), heads[:, -self.heads.size :]
        if self.spec.kv_of_layer is not None:
            norm = None if self.query_norm is None else self.query_norm.weights
            attended = context.attend_shared(self.spec.kv_of_layer, heads, self.variant, rope, norm)
        elif not self.spec.causal:
            with_value, kv_heads = self._with_value(heads), self.kv_heads.size
            attended = context.attend_bidirectional(
                with_value, kv_heads, self.spec.scale, self.spec.window, rope, self.qk_norm, self.score_terms
            )
        else:
            attended = context.attend(self.layer, self._with_value(heads), self.variant, rope, self.qk_norm)
        attended = attended[..., : self.value_dim]
        if self.gate is not None:
            gates = self.gate(x)
        if gates is not None:
            attended = attended * self._gates(gates, attended)
        attended = attended.reshape(len(heads), -1)
        return self.output.add_to(residual, attended if self.output_norm is None else self.output_norm(attended))

    def _widened(self, heads: Tensor) -> Tensor:
        """Pad each of the K values of [T, (H + K) D + K V] with zeros to D numbers: [T, (H + 2 K) D]."""
        size = self.kv_heads.size * self.value_dim
        values = heads[:, -size:].reshape(len(heads), self.kv_heads.size, self.value_dim)
        padded = torch.nn.functional.pad(values, (0, self.spec.head_dim - self.value_dim))
        return torch.cat((heads[:, :-size], padded.flatten(1)), dim=1)

    def _gates(self, gates: Tensor, attended: Tensor) -> Tensor:
        """Return the factors of `attended` [T, H, D]: [T, H, D] or [T, H, 1]."""
        softplus = self.spec.output_gate is not None and self.spec.output_gate.activation == "softplus"
        if self.gate_bias is not None:
            gates = gates.view(*attended.shape[:2], -1) + self.gate_bias[:, None]
        activated = torch.nn.functional.softplus(gates.float()).to(gates.dtype) if softplus else gates.sigmoid()
        return activated.view(*attended.shape[:2], -1)

    def _with_value(self, heads: Tensor) -> Tensor:
        """Return [T, H + 2 K, D]: `heads` with values scaled or normalised, or copied from keys, as the spec says."""
        if self.spec.value_is_key:
            heads = torch.cat((heads, heads[:, -self.kv_heads.size :]), dim=1)
        if self.spec.value_scale != 1:
            heads[:, -self.kv_heads.size :] *= self.spec.value_scale
        if self.value_norm is None:
            return heads
        value = self.value_norm.weights.apply(heads[:, -self.kv_heads.size :])
        return torch.cat((heads[:, : -self.kv_heads.size], value), dim=1)

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint, without those of adapters."""
        names, layer = self.options.names, self.layer
        yield from self.qkv.tensors(*(names.of_layer(role, layer) for role in self.roles))
        if self.spec.kv_of_layer is not None:  # some checkpoints have tensors of keys and values that nothing reads
            yield from (ignored(f"{names.of_layer(role, layer)}.weight") for role in ("key", "value", "key_norm"))
        yield from self.output.tensors(names.of_layer("output", layer))
        if self.gate is not None:
            yield from self.gate.tensors(names.of_layer("output_gate", layer))
        if self.gate_bias is not None:
            yield plain(names.of_layer("gate_bias", layer), self.gate_bias, self.heads)
        if self.output_norm is not None:
            yield from self.output_norm.tensors(names.of_layer("output_norm", layer))
        for role, norm, heads in (("query", self.query_norm, self.heads), ("key", self.key_norm, self.kv_heads)):
            if norm is not None:
                yield from self._norm_tensors(names.of_layer(f"{role}_norm", layer), norm, heads)
        if self.sinks is not None:
            yield plain(names.of_layer("sinks", layer), self.sinks, self.heads)
        if self.distance_terms is not None and layer == 0:
            yield self._distance_tensor(f"{names.distance_terms}.weight", self.distance_terms)
        yield from self._kv_scales(names.of_layer("attention", layer))
        yield ignored(f"{names.of_layer('attention', layer)}.rotary_emb.inv_freq")

    def _norm_tensors(self, name: str, norm: Norm, heads: Span) -> Iterator[CheckpointTensor]:
        """Yield the norm's weights: one vector for all heads, or one for each head, of which a rank reads its own."""
        if norm.weight.dim() == 1:
            yield from norm.tensors(name, order=self.order)
        elif self.spec.qk_norm is not None and self.spec.qk_norm.per_head and "{head}" not in name:
            for kind, numbers in (("weight", norm.weight), ("bias", norm.bias)):
                if numbers is not None:
                    yield self._table_of_heads(f"{name}.{kind}", numbers, heads)
        elif "{head}" not in name:
            size = self.spec.head_dim
            yield from norm.tensors(name, heads.times(size), row_order(self.spec.rope, size, heads.size))
        else:
            width = unsharded(self.spec.head_dim)
            for head in range(heads.total):
                stored, own = f"{name.replace('{head}', str(head))}.weight", head - heads.start
                if 0 <= own < heads.size:
                    yield plain(stored, norm.weight[own], width, order=self.order)
                else:
                    yield CheckpointTensor(name=stored, shape=(width.total,), pieces=())

    def _table_of_heads(self, name: str, numbers: Tensor, heads: Span) -> CheckpointTensor:
        """Return the tensor [heads, head_dim] that holds the norm's weights or biases of each head (Cohere)."""

        def fill(target: Tensor, rows: Rows, values: Tensor) -> None:
            columns = slice(None) if self.order is None else torch.argsort(self.order)
            write(target, rows, values[:, columns])

        piece = Piece(numbers, (heads.slice, slice(0, self.spec.head_dim)), fill)
        return CheckpointTensor(name=name, shape=(heads.total, self.spec.head_dim), pieces=(piece,))

    def _distance_tensor(self, name: str, terms: Tensor) -> CheckpointTensor:
        """Return the tensor [buckets, heads] of terms for distances, of which a rank reads its heads' columns."""
        piece = Piece(terms, (slice(0, len(terms)), self.heads.slice))
        return CheckpointTensor(name=name, shape=(len(terms), self.heads.total), pieces=(piece,))

    def _kv_scales(self, prefix: str) -> Iterator[CheckpointTensor]:
        """Yield the scales of cached keys and values in e4m3, by the names of compressed-tensors and of modelopt.

        Of scales by head the largest is used for all, so that nothing is beyond the range of e4m3.
        """
        for role, attribute in (("k", "key_scale"), ("v", "value_scale")):

            def note(target: Tensor, rows: Rows, values: Tensor, attribute: str = attribute) -> None:  # noqa: ARG001
                least, most = map(float, values.float().aminmax())
                if not 0 < least <= most < math.inf:
                    raise ValueError(f"is not a scale of a layer's KV cache: {least}")
                setattr(self, attribute, most)

            for name in (f"{prefix}.{role}_scale", f"{prefix}.{role}_proj.{role}_scale"):
                if not (self.options.quantization is None or self.options.quantization.kv_in_fp8):
                    yield ignored(name)
                    continue
                piece = Piece(torch.empty(0), fill=note)
                yield CheckpointTensor(name=name, shape=None, pieces=(piece,), optional=True)

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        hidden, size = self.qkv.columns.size, self.options.dtype.itemsize
        query, key = self.heads.size * self.spec.head_dim, self.kv_heads.size * self.spec.head_dim
        # RoPE and norms work in float32: the halves, products and their sum. Without them there may be one copy.
        in_float32 = self.spec.rope is not None or self.spec.qk_norm is not None or self.spec.value_norm is not None
        rotated = (4 if in_float32 else 1) * (query + key) * _FLOAT32_BYTES
        quantized = self.qkv.quantized_input_bytes(query)
        norm = 0 if self.output_norm is None else self.output_norm.step_bytes()
        gated = 0 if self.spec.output_gate is None else 3 * query * (size + _FLOAT32_BYTES)
        gated += (3 * query + 2 * key) * size * self.gated_by_query
        gated += 2 * (query + 2 * key) * size * (self.value_dim < self.spec.head_dim)
        gated += 0 if self.adapters is None else self.adapters.step_bytes()
        # Attention's result is there only after what was rotated in float32 is written.
        result = 0 if in_float32 else 2 * query * size
        return (hidden + 2 * (query + 2 * key)) * size + rotated + result + quantized + norm + gated


def share_distance_terms(layers: list[Attention]) -> None:
    """Make all layers use the first one's terms for distances, if it has any."""
    for layer in layers:
        layer.distance_terms = layers[0].distance_terms
