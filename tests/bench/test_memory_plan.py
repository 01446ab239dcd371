"""The memory plan is compared with the largest step only: smaller ones take less, and say nothing about the bound."""

from __future__ import annotations

import pytest

from bench.memory_plan import require_largest_step


def test_a_prompt_that_was_computed_in_one_step_is_the_largest_step() -> None:
    require_largest_step(2040, 2040)


def test_a_prompt_that_the_engine_has_cut_fails() -> None:
    with pytest.raises(RuntimeError, match="the largest step had 512 of the prompt's 2,040 tokens"):
        require_largest_step(512, 2040)
