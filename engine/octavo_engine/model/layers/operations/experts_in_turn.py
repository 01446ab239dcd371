"""A mixture of experts in PyTorch: one expert after another."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.model.layers.adapters.expert_lora import ExpertAdapters
from octavo_engine.model.layers.operations.products import Product, QuantizedProduct

ROWS_TOGETHER = 256
"""The most rows of an expert that are computed at once. More would need more memory, which the memory plan has to count
for all tokens of a step, as all may choose the same expert; products of so many rows are bound by arithmetic anyway."""


class ExpertMixture(Protocol):
    """A way to compute a mixture of experts."""

    def prepare(self, experts: Experts, top_k: int) -> None:
        """Prepare for all layers' experts, whose weights are loaded by now and have the shapes of these."""

    def __call__(
        self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor, adapters: ExpertAdapters | None = None
    ) -> Tensor:
        """Return each token's weighted sum of experts, [T, hidden], of x [T, hidden]; chosen int64, weights [T, k]."""


def all_experts(
    product: Product,
    x: Tensor,
    experts: Experts,
    chosen: Tensor,
    weights: Tensor,
    adapters: ExpertAdapters | None = None,
) -> Tensor:
    """Return the mixture computed by all experts for all tokens; experts that were not chosen have the weight zero.

    Used on GPUs for experts without a gate or with another activation than SiLU, which our kernels do not compute. The
    host never waits for the device.
    """
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    bias, down_bias = experts.gate_up_bias, experts.down_bias
    every = torch.zeros(len(x), len(experts.down), device=x.device).scatter_add_(1, chosen, weights)
    tokens = torch.arange(len(x), device=x.device)
    for expert in range(len(experts.down)):
        up, down = (None if each is None else each[expert] for each in (bias, down_bias))
        inner = product(x, experts.gate_up[expert], up, None)
        if adapters is not None:
            adapters.add_to_inner(inner, x, tokens, expert)
        inner = experts.activate(inner)
        output = product(inner, experts.down[expert], down, None)
        if adapters is not None:
            adapters.add_to_output(output, inner, tokens, expert)
        total += output.float() * every[:, expert, None]
    return total.to(x.dtype)


class ExpertsInTurn:
    """Computes one expert after another, each for many of its tokens at once; sums are float32."""

    def __init__(self, product: Product, quantized_product: QuantizedProduct | None = None) -> None:
        """Multiply by `product`, or by `quantized_product` where experts are stored in codes."""
        self._product, self._quantized_product = product, quantized_product

    def prepare(self, experts: Experts, top_k: int) -> None:
        """Do nothing: no preparation depends on the weights."""

    def __call__(
        self, x: Tensor, experts: Experts, chosen: Tensor, weights: Tensor, adapters: ExpertAdapters | None = None
    ) -> Tensor:
        """Return each token's weighted sum of experts, [T, hidden], of x [T, hidden]; chosen int64, weights [T, k]."""
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        bias, down_bias = experts.gate_up_bias, experts.down_bias
        for expert in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            up, down = (None if each is None else each[expert] for each in (bias, down_bias))
            for found in torch.split(torch.nonzero(chosen == expert), ROWS_TOGETHER):
                tokens, places = found.unbind(1)
                rows = x[tokens]
                inner = self._up(experts, expert, rows, up)
                if adapters is not None:
                    adapters.add_to_inner(inner, rows, tokens, expert)
                inner = experts.activate(inner)
                part = self._down(experts, expert, inner, down)
                if adapters is not None:
                    adapters.add_to_output(part, inner, tokens, expert)
                total.index_add_(0, tokens, part.float().mul_(weights[tokens, places, None]))
        return total.to(x.dtype)

    def _up(self, experts: Experts, expert: int, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return one expert's [gate up] of x."""
        if experts.quantized is None:
            return self._product(x, experts.gate_up[expert], bias, None)
        return self._of_codes(x, experts.quantized[0].each[expert], bias)

    def _down(self, experts: Experts, expert: int, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return one expert's result for x, the output of its activation."""
        if experts.quantized is None:
            return self._product(x, experts.down[expert], bias, None)
        return self._of_codes(x, experts.quantized[1].each[expert], bias)

    def _of_codes(self, x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
        return cast("QuantizedProduct", self._quantized_product)(x, weight, bias, None)
