"""The gated feed-forward part of a layer (arXiv 2002.05202)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo_engine.model.layers.compute import TorchCompute
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.spec import ModelSpec


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(self, spec: ModelSpec, *, compute: TorchCompute, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        size, bias = spec.intermediate_size, spec.mlp_bias
        self.gate_up = Linear(spec.hidden_size, (size, size), bias=bias, compute=compute, dtype=dtype, device=device)
        self.down = Linear(size, (spec.hidden_size,), bias=bias, compute=compute, dtype=dtype, device=device)
        self.compute = compute
        self.activation = spec.hidden_act

    def forward(self, x: Tensor, addend: Tensor) -> Tensor:
        """[T, hidden] to the same, added to `addend`."""
        inner = self.compute.gated(x, self.gate_up.weight, self.gate_up.bias, self.activation)
        output: Tensor = self.down(inner, addend)
        return output
