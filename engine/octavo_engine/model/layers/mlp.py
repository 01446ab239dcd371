"""The gated feed-forward part of a layer (arXiv 2002.05202)."""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.collectives import Collectives
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.residual import ResidualStream
from octavo_engine.model.spec import ModelSpec


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(
        self, spec: ModelSpec, *, ranks: Collectives, compute: Compute, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        size, linear = spec.intermediate_size, partial(Linear, compute=compute, dtype=dtype, device=device)
        linear = partial(linear, quantization=spec.quantization)
        self.gate_up = linear(spec.hidden_size, (size, size), bias=spec.mlp_bias)
        self.down = linear(size, (spec.hidden_size,), bias=spec.mlp_output_bias)
        self.ranks = ranks
        self.compute = compute
        self.activation = spec.hidden_act

    @property
    def input_scaling(self) -> Scaling | None:
        """How its input is to be quantized."""
        return self.gate_up.input_scaling

    def forward(self, x: Tensor | Quantized, residual: Tensor) -> ResidualStream:
        """[T, hidden] to the same, added to `residual`, which may be overwritten."""
        inner: Tensor | Quantized
        if self.gate_up.scale is None:
            inner = self.compute.gated(cast("Tensor", x), self.gate_up.weight, self.gate_up.bias, self.activation)
        else:
            inner = self.compute.gate_for(self.gate_up(x), self.activation, self.down.input_scaling)
        return self.down.add_to(residual, inner, self.ranks)
