"""What is learned from steps that have run."""

from __future__ import annotations

import pytest

from octavo_engine.core.step_cost import FEW_TOKENS, StepCost


def learned(fixed: float, per_token: float, prompts: list[int]) -> StepCost:
    cost = StepCost()
    for tokens in prompts:
        cost.observe(tokens, fixed + per_token * tokens)
    return cost


def test_both_costs_are_learned_from_mixed_steps() -> None:
    cost = learned(0.010, 0.0002, [0, 512, 0, 64, 0, 256] * 50)
    assert cost.decode_seconds == pytest.approx(0.010, rel=0.02)
    assert cost.token_seconds == pytest.approx(0.0002, rel=0.02)
    assert cost.doubling_tokens(2048) == pytest.approx(50, abs=2)


def test_few_tokens_are_asked_for_until_a_short_step_was_seen() -> None:
    cost = learned(0.010, 0.0002, [512] * 20)
    assert cost.doubling_tokens(2048) == FEW_TOKENS
    cost.observe(FEW_TOKENS, 0.010 + 0.0002 * FEW_TOKENS)
    assert cost.doubling_tokens(2048) > FEW_TOKENS


def test_without_any_prompt_there_is_nothing_to_bound() -> None:
    assert learned(0.010, 0.0, [0] * 5).doubling_tokens(2048) == 2048
