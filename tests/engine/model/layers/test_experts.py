"""Experts in PyTorch: one after another, or all of them for all tokens where the host must not wait for the device."""

from __future__ import annotations

import torch

from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.model.layers.experts.router import choose
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn, all_experts
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.spec import ExpertGroups, RouterSpec


def test_all_experts_give_what_the_chosen_ones_give() -> None:
    generator = torch.Generator().manual_seed(5)
    up, down, x = (torch.randn(*shape, generator=generator) for shape in ((5, 12, 8), (5, 8, 12), (7, 8)))
    up_bias, down_bias = torch.randn(5, 12, generator=generator), torch.randn(5, 8, generator=generator)
    experts = Experts(up, down, up_bias, down_bias, activation=ACTIVATIONS["relu2"], gated=False)
    weights, chosen = torch.rand(7, 5, generator=generator).topk(2)
    expected = ExpertsInTurn(torch_product)(x, experts, chosen, weights)
    torch.testing.assert_close(all_experts(torch_product, x, experts, chosen, weights), expected)


def test_experts_of_other_groups_may_come_before_those_with_a_negative_score() -> None:
    """A.X K2 gives them the score 0, other families none: here the second of group 0 has a negative one."""
    logits, correction = torch.zeros(1, 4), torch.tensor([0.4, -0.9, -0.6, -0.7])
    for dropped, expected in ((-torch.inf, [0, 1]), (0.0, [0])):
        groups = ExpertGroups(count=2, kept=1, best=1, dropped=dropped)
        router = RouterSpec(scores="sigmoid", correction_bias=True, groups=groups)
        chosen, _ = choose(logits, router, 2, correction)
        assert set(expected) <= set(chosen[0].tolist())
        assert (1 in chosen[0].tolist()) == (dropped != 0)
