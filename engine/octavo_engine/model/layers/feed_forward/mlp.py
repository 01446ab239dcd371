"""The dense feed-forward part of a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.experts.experts import cut_off
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.feed_forward.sparse_gate import above_quantile
from octavo_engine.model.layers.feed_forward.xielu import XIELU
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.low_rank import LowRank
from octavo_engine.model.layers.norms.sharded_norm import ShardedNorm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum, summed
from octavo_engine.model.spec import MLPSpec
from octavo_engine.model.tensor_parallel.shard import span

_FLOAT32_BYTES = 4


class MLP(nn.Module):
    """A feed-forward: down(act(gate(x)) * up(x)) (arXiv 2002.05202), gate and up fused; or down(act(up(x))) without."""

    def __init__(
        self,
        spec: MLPSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
        *,
        roles: str = "",
    ) -> None:
        """`roles` is a prefix of the roles `gate`, `up` and `down` in `TensorNames`, such as `shared_`."""
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        size, shard = spec.intermediate_size, options.ranks.shard
        self.names = tuple(options.names.of_layer(f"{roles}{role}", layer) for role in ("gate", "up", "down"))
        self.names = self.names if spec.gated else self.names[1:]
        alignment = options.alignment(*self.names)
        inner = span(shard.intermediate(size, alignment), size, "intermediate_size")
        hidden = unsharded(hidden_size, "hidden_size")
        parts = (inner, inner) if spec.gated else (inner,)
        self.inner = inner
        self.gate_up = Linear(
            hidden,
            parts,
            bias=spec.bias,
            options=options,
            method=options.method_of(*self.names[:-1]),
            layout=options.names.gate_up_layout,
        )
        rank = spec.adapter_rank
        self.adapters = None if rank is None else LowRank(hidden, (parts,), rank, options)
        self.xielu = XIELU(options) if spec.activation == "xielu" else None
        eps = None if spec.inner_norm is None else spec.inner_norm.eps
        self.inner_norm = None if eps is None else ShardedNorm(inner, eps, options)
        method = options.method_of(self.names[-1])
        self.down = Linear(inner, (hidden,), bias=spec.output_bias, options=options, method=method, summed=True)

    @property
    def input_scaling(self) -> Scaling | None:
        """How the layer's input has to be quantized; None: not at all."""
        return None if self.adapters is not None else self.gate_up.input_scaling

    def forward(self, x: Tensor | Quantized, residual: Tensor | None) -> ResidualStream:
        """Map x [T, hidden] to [T, hidden], added to `residual`, which may be overwritten."""
        if self.spec.output_scale == 1:
            return self.down.add_to(residual, self._inner(x))
        product = summed(self.down.add_to(None, self._inner(x))) * self.spec.output_scale
        return product if residual is None else ResidualSum(product, residual)

    def partial(self, x: Tensor) -> Tensor:
        """Map x [T, hidden] to this rank's part of the result [T, hidden], which is not yet summed over ranks."""
        result: Tensor = self.down(self._inner(x))
        return result if self.spec.output_scale == 1 else result * self.spec.output_scale

    def _inner(self, x: Tensor | Quantized) -> Tensor | Quantized:
        if self.inner_norm is None:
            return self._activated(x)
        normed: Tensor = self.inner_norm(self.options.compute.gate(self.gate_up(x), self.spec.activation))
        return normed

    def _activated(self, x: Tensor | Quantized) -> Tensor | Quantized:
        compute, gate_up, activation = self.options.compute, self.gate_up, self.spec.activation
        if self.xielu is not None:
            activated: Tensor = self.xielu(gate_up(x))
            return activated
        if not self.spec.gated:
            return compute.activate(gate_up(x), activation)
        if self.adapters is not None:
            return compute.gate(gate_up(x) + self.adapters(cast("Tensor", x)), activation)
        if self._changes_gates:
            return self._gated(*torch.chunk(gate_up(x), 2, dim=-1))
        if gate_up.plain and gate_up.lora is None:
            return compute.gated(cast("Tensor", x), gate_up.weight, gate_up.bias, activation)
        return compute.gate_for(gate_up(x), activation, self.down.input_scaling)

    @property
    def _changes_gates(self) -> bool:
        """Whether a gate is changed otherwise than by its activation: made sparse, scaled or clamped."""
        spec = self.spec
        return spec.sparsity > 0 or spec.gate_scale != 1 or spec.limit is not None or spec.activated_limit is not None

    def _gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Return [T, inner] of gate and up [T, inner], for specs that make gates sparse, scale or clamp them."""
        if self.spec.limit is not None:
            return cut_off(gate, up, self.spec.limit, self.spec.alpha, self.spec.up_offset)
        activated = self.options.compute.activate(self._changed(gate), self.spec.activation)
        if (most := self.spec.activated_limit) is not None:
            activated, up = activated.clamp(max=most), up.clamp(-most, most)
        return activated * up

    def _changed(self, gate: Tensor) -> Tensor:
        """Return the gate [T, inner] made sparse and scaled, as the activation reads it."""
        if self.spec.sparsity:
            gate = above_quantile(gate, self.inner, self.spec.sparsity, self.options)
        return gate if self.spec.gate_scale == 1 else gate * self.spec.gate_scale

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint, without those of adapters."""
        names = self.options.names
        yield from self.gate_up.tensors(*self.names[:-1])
        if self.inner_norm is not None:
            yield from self.inner_norm.tensors(names.of_layer("inner_norm", self.layer))
        if self.xielu is not None:
            yield from self.xielu.tensors(names.of_layer("activation", self.layer))
        yield from self.down.tensors(self.names[-1])

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, inner, size = self.gate_up.columns.size, self.down.columns.size, self.options.dtype.itemsize
        quantized = self.gate_up.quantized_input_bytes(inner)
        activation = 0 if self.xielu is None else 4 * inner  # the terms of its sums
        norm = 0 if self.inner_norm is None else self.inner_norm.step_bytes()
        cut = 3 * inner * (self.spec.limit is not None or self.spec.activated_limit is not None)
        scaled = cut + 2 * inner * (self.spec.gate_scale != 1) + 2 * hidden * (self.spec.output_scale != 1)
        sparse = 4 * inner * _FLOAT32_BYTES if self.spec.sparsity else 0
        adapters = 0 if self.adapters is None else self.adapters.step_bytes() + 2 * inner * size
        return (hidden + 3 * inner + activation + scaled) * size + quantized + norm + sparse + adapters
