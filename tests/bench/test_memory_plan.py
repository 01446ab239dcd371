"""The memory plan is compared with the largest step only: smaller ones take less, and say nothing about the bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench import memory_plan
from bench.memory_plan import count_tokens_of_steps, require_largest_step
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.core.step_cost import StepCost
from octavo_engine.process_setup import freed_memory
from octavo_engine.runner.worker import Worker


def test_a_prompt_that_was_computed_in_one_step_is_the_largest_step() -> None:
    require_largest_step(2040, 2040)


def test_a_prompt_that_the_engine_has_cut_fails() -> None:
    with pytest.raises(RuntimeError, match="the largest step had 512 of the prompt's 2,040 tokens"):
        require_largest_step(512, 2040)


def test_steps_are_counted_and_none_is_cut_for_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(worker: Any, plan: StepPlan, *, in_parts: bool = True) -> tuple[Any, StepPlan, bool]:
        return worker, plan, in_parts

    monkeypatch.setattr(Worker, "forward", forward)
    monkeypatch.setattr(StepCost, "tokens_within", StepCost.tokens_within)  # restored after the test
    cost, worker, plan = StepCost(), object(), StepPlan(0, decode_rows=[1], chunks=(Chunk(0, 0, 100, samples=True),))
    cost.observe(512, seconds=8.0)
    assert cost.tokens_within(1.0, 2040) == 64
    steps = count_tokens_of_steps()
    assert cost.tokens_within(1.0, 2040) == 2040
    assert Worker.forward(worker, plan, in_parts=False) == (worker, plan, False)
    assert steps == [101]


def test_threads_get_one_heap_before_the_first_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a thread before it, an engine's threads would share two heaps, which is not what a server takes."""
    done: list[str] = []

    def begin() -> None:
        done.append("the first thread")
        raise RuntimeError("enough is known")

    monkeypatch.setattr(freed_memory, "use_one_heap", lambda: done.append("one heap"))
    monkeypatch.setattr(memory_plan, "_Memory", begin)
    with pytest.raises(RuntimeError, match="enough is known"):
        memory_plan.measure("gguf", Path())
    assert done == ["one heap", "the first thread"]
