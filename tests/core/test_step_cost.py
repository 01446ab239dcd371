"""The cost model of steps, learned from steps that have run."""

from __future__ import annotations

import pytest

from octavo_engine.core.step_cost import FEW_TOKENS, FIRST_TOKENS, SHORT_STEP, StepCost


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


def test_a_step_within_some_seconds() -> None:
    cost = learned(0.010, 0.0002, [0, 512] * 50)
    assert cost.tokens_within(0.110, 2048) == pytest.approx(500, rel=0.02)
    assert cost.tokens_within(0.110, 64) == 64
    assert FEW_TOKENS < cost.tokens_within(0.001, 2048) < 64, "a prompt goes on, and tells, however slow the device is"
    assert cost.tokens_within(float("inf"), 2048) == 2048


def test_a_step_beside_streams_is_short_unless_its_decodes_take_long() -> None:
    """This holds for any limit that the watchdog sets."""
    assert learned(0.010, 0.001, [0, 512] * 50).tokens_within(3.75, 2048) == pytest.approx(SHORT_STEP / 0.001, rel=0.05)
    slow = learned(0.5, 0.001, [0, 512] * 50)  # the weights of a large model are read in half a second
    assert slow.tokens_within(3.75, 2048) == pytest.approx(3 * 0.5 / 0.001, rel=0.05)
    assert slow.tokens_within(1.0, 2048) == pytest.approx(0.5 / 0.001, rel=0.05)
    alone = learned(0.0, 0.001, [512] * 50)  # no stream has been measured
    assert alone.tokens_within(1.5, 2048) == pytest.approx(1500, rel=0.05)


def test_a_step_that_was_slow_counts_at_once_and_not_for_long() -> None:
    cost = learned(0.0, 0.001, [256] * 50)
    cost.observe(100, 10.0)
    assert cost.tokens_within(8.0, 2048) == 80
    for _ in range(4):
        cost.observe(80, 0.08)
    assert cost.tokens_within(8.0, 2048) == 2048


def test_prompts_that_cost_no_more_than_the_decodes_before_them_are_not_held_back() -> None:
    cost = learned(0.025, 0.0, [0] * 50)  # long contexts, which have ended
    for _ in range(4):
        cost.observe(256, 0.009)
    assert cost.tokens_within(3.75, 8192) == 8192


def test_until_the_cost_of_prompts_is_measured_chunks_are_small() -> None:
    assert learned(0.010, 0.0, []).tokens_within(1.0, 2048) == FIRST_TOKENS
    assert learned(0.010, 0.0, []).tokens_within(float("inf"), 2048) == 2048


def test_the_steps_launched_before_the_cost_of_prompts_is_measured_are_short_even_on_a_busy_slow_cpu() -> None:
    """Two are planned by then. On two cores that clients used too, a token of a prompt cost 10 ms."""
    assert 2 * FIRST_TOKENS * 0.010 < 1.5


def test_a_prompts_token_that_seems_to_cost_ever_less_still_has_a_finite_number_that_doubles_a_step() -> None:
    """Each step of prompts takes less time than the decodes of long ago: the average becomes nearly nothing."""
    cost = StepCost()
    cost.observe(0, 0.05)
    for seconds in (0.06, *[0.01] * 8000):
        cost.observe(128, seconds)
    assert 0 < cost.token_seconds < 1e-300
    assert cost.doubling_tokens(512) == 512
