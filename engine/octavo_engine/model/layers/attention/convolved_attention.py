"""Compressed Convolutional Attention over the paged cache (Zaya, arXiv 2510.04476)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.states import StateStep
from octavo_engine.kernels.fp8_activations import Quantized
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, joined, plain, unsharded
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.embeddings.rope import head_order
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.causal_conv import after_earlier_inputs
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import ConvolvedAttentionSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4
_ROLES = ("query", "key", "value")


class ConvolvedAttention(CachedAttention):
    """Attention of queries and keys that two causal convolutions have mixed; some values come a token late.

    A rank has KV heads with all query heads that read them. All ranks compute the values of all heads, which are few.
    """

    columns: Tensor | None
    """[D] int64, where RoPE rotates a part of a head: the dimension that each one of the order of `head_order` was."""

    def __init__(self, spec: ConvolvedAttentionSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__(layer, options)
        self.spec, attention, conv = spec, spec.attention, spec.state_mixer
        shard, hidden = options.ranks.shard, unsharded(hidden_size, "hidden_size")
        size = attention.head_dim
        self.heads = span(shard.heads(attention), attention.num_heads, "query heads")
        self.kv_heads = span(shard.kv_heads(attention), attention.num_kv_heads, "KV heads")
        self.query, self.key = self.heads.times(size), self.kv_heads.times(size)
        now = unsharded(attention.num_kv_heads * size - conv.delayed)
        parts = (self.query, self.key, now, unsharded(conv.delayed))
        method = options.method(layer, *_ROLES)
        self.qkv = Linear(hidden, parts, bias=attention.qkv_bias, options=options, method=method)
        heads, (first, second) = self.heads.size + self.kv_heads.size, conv.widths
        self.each = self._memory(heads * size, 1, first)
        self.together = self._memory(heads * size, size, second)
        self.each_bias, self.together_bias = self._memory(heads * size), self._memory(heads * size)
        self.key_factors = self._memory(self.kv_heads.size)
        method, bias = options.method(layer, "output"), attention.output_bias
        self.output = Linear(self.query, (hidden,), bias=bias, options=options, method=method, summed=True)
        self.variant = AttentionVariant(attention.scale)
        order = head_order(attention.rope, size)
        columns = None if order is None else order.argsort().to(options.device)
        self.register_buffer("columns", columns, persistent=False)

    def _memory(self, *shape: int) -> nn.Parameter:
        """Return a parameter in the model's dtype."""
        return parameter(*shape, dtype=self.options.dtype, device=self.options.device)

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        (past, late), step = context.state(self.layer)
        rotated = self.query.size + self.key.size
        projected = self.qkv(x)
        heads = torch.cat(
            (
                self._queries_and_keys(projected[:, :rotated], past, step),
                self._values(projected[:, rotated:], late, step),
            ),
            dim=1,
        )
        attended = context.attend(self.layer, heads, self.variant, rope, None)
        return self.output.add_to(residual, attended.flatten(1))

    def _queries_and_keys(self, projected: Tensor, past: Tensor, step: StateStep) -> Tensor:
        """Return the heads' queries and keys [T, H + K, D], each as long as the root of D times its factor."""
        size, kv_heads = self.spec.attention.head_dim, self.kv_heads.size
        heads = projected.view(len(projected), -1, size)
        groups = heads[:, :-kv_heads].view(len(heads), kv_heads, -1, size)
        queries = (groups + heads[:, -kv_heads:, None]) * 0.5
        means = torch.cat((queries.flatten(1, 2), queries.mean(dim=2)), dim=1)
        convolved = self._convolved(projected, past, step).view_as(means)
        mixed: Tensor = F.normalize(convolved + means, dim=-1, eps=torch.finfo(means.dtype).eps) * size**0.5
        mixed[:, -kv_heads:] *= self.key_factors[:, None]
        return mixed if self.columns is None else mixed[..., self.columns]

    def _convolved(self, x: Tensor, past: Tensor, step: StateStep) -> Tensor:
        """Return both convolutions [T, C] of x [T, C]. The second also reads what the first gives before the first
        token, of zeros: its bias."""
        conv = self.spec.state_mixer
        (first, second), size = conv.widths, conv.head_dim
        rows, tokens = after_earlier_inputs(x, conv.past, past, step)
        window = rows[tokens[:, None] - torch.arange(conv.past, -1, -1, device=x.device)]
        each = self.each_bias + window[:, :second] * self.each[:, 0, 0]
        for tap in range(1, first):
            each += window[:, tap : tap + second] * self.each[:, 0, tap]
        weight = self.together.view(-1, size, size, second)
        inner = each.view(len(x), second, -1, size)
        return torch.einsum("tjgi,goij->tgo", inner, weight).flatten(1) + self.together_bias

    def _values(self, projected: Tensor, late: Tensor, step: StateStep) -> Tensor:
        """Return the values of this rank's KV heads [T, K, D]: of each token, and, the last of all heads' numbers, of
        the token before; before the first there are zeros, whose projection is the bias."""
        delayed = self.spec.state_mixer.delayed
        first = None if self.qkv.bias is None else self.qkv.bias[-delayed:]
        rows, tokens = after_earlier_inputs(projected[:, -delayed:], 1, late, step, first)
        values = torch.cat((projected[:, :-delayed], rows[tokens - 1]), dim=-1)
        return values.view(len(values), -1, self.spec.attention.head_dim)[:, self.kv_heads.slice]

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names = self.options.names
        module = names.of_layer("attention", self.layer)
        roles = (names.of_layer(role, self.layer) for role in _ROLES)
        yield from self.qkv.tensors(*roles, f"{module}.qkv_proj.v_proj_delayed")
        for name, weight, bias in (
            ("depthwise", self.each, self.each_bias),
            ("grouped", self.together, self.together_bias),
        ):
            for kind, own in (("weight", weight), ("bias", bias)):
                full, count = f"{module}.qkv_proj.conv_qk_{name}.{kind}", self.query.size
                yield from joined((plain(full, own[:count], self.query), plain(full, own[count:], self.key)))
        yield plain(f"{module}.qk_norm.temp", self.key_factors, self.kv_heads)
        yield from self.output.tensors(names.of_layer("output", self.layer))

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        hidden, size, conv = self.qkv.columns.size, self.options.dtype.itemsize, self.spec.state_mixer
        queries, keys = self.query.size, self.key.size
        channels, values = queries + keys, self.spec.attention.num_kv_heads * conv.head_dim
        quantized = self.qkv.quantized_input_bytes(queries)
        convolved = (conv.past + 1 + 5 * conv.widths[1] + 8) * channels
        rotated = 4 * channels * _FLOAT32_BYTES
        return (hidden + convolved + 6 * values) * size + rotated + quantized + 8 * (conv.past + 4)
