"""The gated feed-forward part of a layer (arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.spec import ModelSpec

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)), gate and up fused."""

    def __init__(self, spec: ModelSpec, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        size = spec.intermediate_size
        self.gate_up = Linear(spec.hidden_size, (size, size), bias=spec.mlp_bias, dtype=dtype, device=device)
        self.down = Linear(size, (spec.hidden_size,), bias=spec.mlp_bias, dtype=dtype, device=device)
        self.activation = _ACTIVATIONS[spec.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden] to the same."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        down: Tensor = self.down(self.activation(gate).mul_(up))
        return down
