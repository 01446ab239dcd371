"""The mixture of experts in place of a layer's dense feed-forward (arXiv 1701.06538)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.kernels.experts import Experts
from octavo_engine.kernels.quantized import Quantized, Scaling
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.spec import ModelSpec, MoESpec


class MoE(nn.Module):
    """The sum of the experts that a router chooses for a token, weighted by a softmax over the chosen ones' logits.

    Memory is not initialised; the loader fills it.
    """

    def __init__(
        self, spec: ModelSpec, moe: MoESpec, *, compute: Compute, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        hidden, inner, count = spec.hidden_size, spec.intermediate_size, moe.experts

        def memory(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)

        self.router = Linear(hidden, (count,), bias=True, compute=compute, dtype=dtype, device=device)
        self.gate_up, self.gate_up_bias = memory(count, 2 * inner, hidden), memory(count, 2 * inner)
        self.down, self.down_bias = memory(count, hidden, inner), memory(count, hidden)
        self.experts = Experts(
            self.gate_up, self.down, self.gate_up_bias, self.down_bias, limit=moe.limit, alpha=moe.alpha
        )
        self.active, self.compute = moe.active, compute

    @property
    def input_scaling(self) -> Scaling | None:
        """Its input is not to be quantized."""
        return self.router.input_scaling

    def forward(self, x: Tensor | Quantized, residual: Tensor) -> ResidualStream:
        """[T, hidden] to the same; the next norm adds it to `residual`."""
        values = cast("Tensor", x)  # as `input_scaling` says
        logits, chosen = self.router(values).topk(self.active, dim=-1)
        weights = logits.float().softmax(dim=-1)
        return ResidualSum(self.compute.mixture(values, self.experts, chosen, weights), residual)
