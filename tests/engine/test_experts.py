"""Experts in PyTorch: one after another, or all of them for all tokens where the host must not wait for the device."""

from __future__ import annotations

import torch

from octavo_engine.kernels.experts import Experts
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn, all_experts
from octavo_engine.model.layers.operations.products import torch_product


def test_all_experts_give_what_the_chosen_ones_give() -> None:
    generator = torch.Generator().manual_seed(5)
    up, down, x = (torch.randn(*shape, generator=generator) for shape in ((5, 12, 8), (5, 8, 12), (7, 8)))
    experts = Experts(up, down, activation=ACTIVATIONS["relu2"], gated=False)
    weights, chosen = torch.rand(7, 5, generator=generator).topk(2)
    expected = ExpertsInTurn(torch_product)(x, experts, chosen, weights)
    torch.testing.assert_close(all_experts(torch_product, x, experts, chosen, weights), expected)
