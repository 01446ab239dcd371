"""Sequences whose keys change beyond a length (LongRoPE): they are recomputed, and share no blocks with short ones."""

from __future__ import annotations

import pytest
from simulation import add, answer_of, expected, make_engine, make_scheduler, run, step

from octavo_engine.core.settings import LongContext


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_request_that_becomes_long_is_computed_anew(ahead: int) -> None:
    scheduler = make_scheduler(long_context=LongContext(above=24, recomputed=True))
    grows, stays = add(scheduler, "grows", 20, max_tokens=40), add(scheduler, "stays", 20, max_tokens=4)
    outputs = run(scheduler, ahead=ahead)
    assert answer_of(outputs, "grows") == expected(grows) and answer_of(outputs, "stays") == expected(stays)
    assert scheduler.counters.recomputed_tokens == 24 and scheduler.counters.preemptions == 0
    assert grows.long_context and not stays.long_context


def test_its_first_token_beyond_the_length_is_computed_with_all_before_it() -> None:
    scheduler, device = make_engine(long_context=LongContext(above=24, recomputed=True))
    add(scheduler, "a", 20, max_tokens=40)
    begun = []
    for _ in range(12):
        if (plan := scheduler.schedule(0.0)) is not None:
            begun += [(len(new.token_ids), chunk.start) for new, chunk in zip(plan.new_rows, plan.chunks, strict=True)]
            scheduler.update(plan, device.execute(plan), 0.0)
    assert begun == [(20, 0), (25, 0)]


@pytest.mark.parametrize(("recomputed", "recomputed_tokens"), [(True, 8), (False, 0)])
def test_blocks_are_found_by_requests_of_the_same_kind_alone(recomputed: bool, recomputed_tokens: int) -> None:
    """A growing request finds what long ones have computed.

    Without recomputation a request's kind depends on its prompt alone.
    """
    scheduler, device = make_engine(long_context=LongContext(above=40, recomputed=recomputed))
    text = list(range(100))

    def cached(name: str, length: int) -> int:
        state = add(scheduler, name, text[:length], max_tokens=1)
        while scheduler.has_work:
            step(scheduler, device)
        return state.cached_tokens

    assert [cached("short", 40), cached("short again", 40)] == [0, 32]
    assert [cached("long", 60), cached("long again", 60)] == [0, 48]
    state = add(scheduler, "grows", text[:40], max_tokens=8)
    while scheduler.has_work:
        step(scheduler, device)
    assert scheduler.counters.recomputed_tokens == recomputed_tokens
    assert state.long_context == recomputed
