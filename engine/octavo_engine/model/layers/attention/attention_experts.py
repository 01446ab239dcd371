"""Attention over the paged cache with a router that chooses query and output projections (JetMoE, arXiv 2404.07413)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionVariant
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, ignored, plain, unsharded, vector_of_first_rank
from octavo_engine.model.layers.attention.cached_attention import CachedAttention
from octavo_engine.model.layers.experts.router import choose
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import AttentionExpertsSpec, RouterSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class AttentionExperts(CachedAttention):
    """Attention in which a router chooses the query and output projections (experts) of each token.

    Ranks have a part of the KV heads and, of every expert, the query heads that read them. All experts are multiplied,
    and the chosen ones' results gathered: there are few experts, and the host need not know which are chosen.
    """

    def __init__(self, spec: AttentionExpertsSpec, hidden_size: int, layer: int, options: LayerOptions) -> None:
        super().__init__(layer, options)
        self.spec = spec
        self.hidden, self.experts = unsharded(hidden_size, "hidden_size"), unsharded(spec.num_experts)
        self.heads = span(options.ranks.shard.heads(spec), spec.num_heads, "KV heads")
        self.rows = rows = self.heads.times(spec.head_dim)
        self.router = Linear(self.hidden, (self.experts,), bias=False, options=options)
        method = options.method(layer, "key", "value")
        self.kv = Linear(self.hidden, (rows, rows), bias=False, options=options, method=method)
        dtype, device = options.dtype, options.device
        self.query = parameter(spec.num_experts, rows.size, hidden_size, dtype=dtype, device=device)
        self.output = parameter(spec.num_experts, hidden_size, rows.size, dtype=dtype, device=device)
        self.bias = None if options.ranks.shard.rank else parameter(hidden_size, dtype=dtype, device=device)
        self.variant = AttentionVariant(spec.scale)

    @property
    def input_scaling(self) -> Scaling | None:
        """Return None: the input is not quantized."""
        return None

    def forward(
        self, x: Tensor | Quantized, residual: Tensor | None, rope: Rope | None, context: StepContext
    ) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden]; the next norm adds the result to `residual`."""
        values, count, size = cast("Tensor", x), self.heads.size, self.spec.head_dim
        chosen, weights = choose(self.router(values), RouterSpec(), self.spec.top_k, None)
        index = chosen[..., None].expand(-1, -1, self.rows.size)
        queries = torch.einsum("th,erh->ter", values, self.query).gather(1, index)
        queries = queries.view(len(values), -1, count, size).transpose(1, 2).flatten(1, 2)
        heads = torch.cat((queries, self.kv(values).view(len(values), 2 * count, size)), dim=1)
        attended = context.attend(self.layer, heads, self.variant, rope, None)
        attended = attended.view(len(values), count, -1, size).transpose(1, 2).flatten(2)
        weighted = attended * weights.to(attended.dtype)[..., None]
        spread = weighted.new_zeros(len(values), self.spec.num_experts, self.rows.size).scatter_(1, index, weighted)
        product = self._summed_outputs(spread)
        product = self.options.ranks.all_reduce(product if self.bias is None else product + self.bias)
        return product if residual is None else ResidualSum(product, residual)

    def _summed_outputs(self, spread: Tensor) -> Tensor:
        """Return the experts' outputs, added up: [T, experts, rows] to [T, hidden].

        One product an expert, as a single one over all would copy the weights in each step.
        """
        total = spread.new_zeros(len(spread), self.hidden.size)
        for expert, output in enumerate(self.output):
            total.addmm_(spread[:, expert], output.t())
        return total

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        names, layer = self.options.names, self.layer
        module = names.of_layer("attention", layer)
        yield from self.router.tensors(f"{module}.experts.router.layer")
        yield from self.kv.tensors(names.of_layer("key", layer), names.of_layer("value", layer))
        yield plain(f"{module}.experts.input_linear.weight", self.query, self.experts, self.rows)
        yield plain(f"{module}.experts.output_linear.weight", self.output, self.experts, self.hidden, self.rows)
        yield vector_of_first_rank(f"{module}.experts.bias", self.bias, self.hidden)
        yield ignored(f"{module}.rotary_emb.inv_freq")

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer in a step, without the backend's scratch memory."""
        hidden, size, rows = self.hidden.size, self.options.dtype.itemsize, self.rows.size
        queries = self.spec.top_k * rows
        rotated = 4 * (queries + rows) * _FLOAT32_BYTES
        return (4 * hidden + 2 * self.spec.num_experts * rows + 8 * queries + 6 * rows) * size + rotated + 32 * queries
