"""Attention with a bias for each key, computed from its values, over the paged cache (Doge's dynamic mask)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.qk_norm import QKNorm, normalise
from octavo_engine.attention.rope import Rope, rotate
from octavo_engine.kernels.fp8_activations import Quantized
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, plain, unsharded
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, summed
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import BiasedAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_ROLES = ("query", "key", "value")


class BiasedAttention(CachedAttention):
    """Attention whose scores have a bias for each key and KV head.

    A KV head's biases are computed from the values of all KV heads; ranks sum their parts of that product.
    """

    def __init__(self, spec: BiasedAttentionSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__(layer, options)
        self.spec = spec
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        self.heads = span(shard.heads(spec), spec.num_heads, "query heads")
        self.kv_heads = span(shard.kv_heads(spec), spec.num_kv_heads, "KV heads")
        self._is_first_with_kv_heads = shard.first_with_kv_heads(spec)
        query, key = self.heads.times(spec.size), self.kv_heads.times(spec.size)
        method = options.method(layer, *_ROLES)
        self.qkv = Linear(hidden, (query, key, key), bias=spec.bias, options=options, method=method)
        self.query_norm, self.key_norm = (Norm(spec.size, spec.norm, options) for _ in range(2))
        numbers = unsharded(spec.num_kv_heads)
        self.numbers = Linear(key, (numbers,), bias=spec.bias, options=options, summed=True)
        self.factors = parameter(self.kv_heads.size, dtype=options.dtype, device=options.device)
        method = options.method(layer, "output")
        self.output = Linear(query, (hidden,), bias=spec.bias, options=options, method=method, summed=True)
        self.variant = AttentionVariant(spec.scale)

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        size, kv_heads = self.spec.size, self.kv_heads.size
        projected = self.qkv(x)
        biases = self._biases(projected[:, -kv_heads * size :])
        heads = projected.view(len(projected), -1, size)
        heads = normalise(heads, kv_heads, QKNorm(self.query_norm.weights, self.key_norm.weights))
        if rope is not None:
            heads = torch.cat((rotate(heads[:, :-kv_heads], rope), heads[:, -kv_heads:]), dim=1)
        wide = F.pad(heads, (0, self.spec.head_dim - size))
        wide[:, : self.heads.size, size] = 1
        wide[:, self.heads.size : -kv_heads, size] = biases / self.spec.scale
        attended = context.attend(self.layer, wide, self.variant, None, None)
        return self.output.add_to(residual, attended[..., :size].flatten(1))

    def _biases(self, values: Tensor) -> Tensor:
        """Return the biases of the scores of this rank's KV heads, [T, K], from its values [T, K * size]."""
        counted = values.contiguous() if self._is_first_with_kv_heads else torch.zeros_like(values)
        numbers = summed(self.numbers.add_to(None, counted))[:, self.kv_heads.slice]
        return torch.exp(self.factors * F.softplus(numbers))

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        module = names.of_layer("attention", self.layer)
        yield from self.qkv.tensors(*(names.of_layer(role, self.layer) for role in _ROLES))
        yield from self.query_norm.tensors(names.of_layer("query_norm", self.layer))
        yield from self.key_norm.tensors(names.of_layer("key_norm", self.layer))
        yield from self.numbers.tensors(f"{module}.dt_proj")
        yield plain(f"{module}.A", self.factors, self.kv_heads)
        yield from self.output.tensors(names.of_layer("output", self.layer))
        yield ignored(f"{module}.rotary_emb.inv_freq")

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        hidden, size, wide = self.qkv.columns.size, self.options.dtype.itemsize, self.spec.head_dim
        queries, keys = self.heads.size * wide, self.kv_heads.size * wide
        quantized = self.qkv.quantized_input_bytes(queries)
        rotated = 4 * (queries + keys) * _FLOAT32_BYTES
        return (hidden + 6 * queries + 8 * keys) * size + rotated + quantized
