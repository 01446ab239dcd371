"""Attention by the difference of two softmaxes over the paged cache (Differential Transformer, arXiv 2410.05258)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope, rotate
from octavo_engine.kernels.fp8_activations import Quantized
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, plain, unsharded
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import DifferentialAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_SHARES = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


class DifferentialAttention(CachedAttention):
    """Attention by the difference of two softmaxes.

    A rank has pairs of heads, one from each half. Cached keys are padded with zeros to the size of values.
    """

    def __init__(
        self,
        spec: DifferentialAttentionSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__(layer, options)
        self.spec = spec
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        self.heads = span(shard.heads(spec), spec.num_heads, "pairs of query heads")
        self.kv_heads = span(shard.kv_heads(spec), spec.num_kv_heads, "pairs of KV heads")
        query, key = self.heads.times(spec.size), self.kv_heads.times(spec.size)
        method = options.method(layer, "query", "key", "value")
        parts = (query, query, key, key, key, key)
        self.qkv = Linear(hidden, parts, bias=spec.bias, options=options, method=method)
        method, pairs = options.method(layer, "output"), self.heads.times(spec.head_dim)
        self.output = Linear(pairs, (hidden,), bias=spec.bias, options=options, method=method, summed=True)
        self.shares = parameter(len(_SHARES), spec.size, dtype=options.dtype, device=options.device)
        self.variant = AttentionVariant(spec.scale)

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        size = self.spec.size
        projected = self.qkv(x)
        heads = projected.view(len(projected), -1, size)
        attending, values = heads[:, : -2 * self.kv_heads.size], heads[:, -2 * self.kv_heads.size :]
        if rope is not None:
            attending = rotate(attending, rope)
        pairs = torch.cat(values.chunk(2, dim=1), dim=-1)
        together = torch.cat((F.pad(attending, (0, size)), pairs, pairs), dim=1)
        attended = context.attend(self.layer, together, self.variant, None, None)
        first, second = attended.chunk(2, dim=1)
        difference = first - self._share() * second
        normed = F.rms_norm(difference, (self.spec.head_dim,), eps=self.spec.eps) * (1 - self.spec.share)
        return self.output.add_to(residual, normed.flatten(1))

    def _share(self) -> Tensor:
        """Return the factor of the second softmax (lambda), one number."""
        products = (self.shares[::2] * self.shares[1::2]).sum(-1, dtype=torch.float32).exp().to(self.shares.dtype)
        return products[0] - products[1] + self.spec.share

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        roles = ("query", "query", "key", "key", "value", "value")
        yield from self.qkv.tensors(*(names.of_layer(role, self.layer) for role in roles))
        yield from self.output.tensors(names.of_layer("output", self.layer))
        module = names.of_layer("attention", self.layer)
        for index, name in enumerate(_SHARES):
            yield plain(f"{module}.{name}", self.shares[index], unsharded(self.spec.size))
        yield ignored(f"{module}.rotary_emb.inv_freq")

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        hidden, size, pair = self.qkv.columns.size, self.options.dtype.itemsize, self.spec.head_dim
        queries, keys = self.heads.size * pair, self.kv_heads.size * pair
        quantized = self.qkv.quantized_input_bytes(queries)
        rotated = 4 * (queries + keys) * _FLOAT32_BYTES
        return (hidden + 8 * queries + 8 * keys) * size + rotated + quantized
