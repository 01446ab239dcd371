"""The scheduler alone: no torch, a pretended device that checks every read and write."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Device, answer_of, expected_answer, make_request, make_scheduler, run

from octavo_engine.core.request import FinishReason


def test_one_request_is_answered_in_full() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 20, max_tokens=5))
    outputs = run(scheduler)
    assert answer_of(outputs, "a") == expected_answer(make_request("a", 20).token_ids, 5)
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    assert scheduler.report().kv_blocks_used == 0


def test_long_prompts_are_cut_and_mixed_with_decodes() -> None:
    scheduler = make_scheduler(tokens=16)
    device = Device(16)
    scheduler.add(make_request("short", 4, max_tokens=10))
    outputs = []
    plan = scheduler.plan(0.0)
    assert plan is not None
    outputs += scheduler.update(plan, device.execute(plan))
    scheduler.add(make_request("long", 100, max_tokens=2))
    for _ in range(3):
        plan = scheduler.plan(0.0)
        assert plan is not None
        assert [(row.request_id, row.num_tokens) for row in plan.rows] == [("short", 1), ("long", 15)]
        outputs += scheduler.update(plan, device.execute(plan))


def test_a_decode_runs_in_every_step_beside_any_number_of_prefills() -> None:
    scheduler = make_scheduler(blocks=256, tokens=16)
    scheduler.add(make_request("decode", 4, max_tokens=20))
    run_outputs = []

    def flood(step: int) -> None:
        if step == 1:
            for n in range(6):
                scheduler.add(make_request(f"prefill{n}", 200, max_tokens=1))

    run_outputs += run(scheduler, between=flood)
    first_twenty_steps = [output.request_id for output in run_outputs if output.request_id == "decode"]
    assert len(first_twenty_steps) == 20
    decode_end = next(i for i, o in enumerate(run_outputs) if o.request_id == "decode" and o.finish_reason)
    # 20 steps give the prefills at most 19 * 15 tokens: one prompt of 200 can have ended before the decode did.
    assert decode_end <= 20


def test_without_blocks_the_youngest_is_preempted_and_still_answered_in_full() -> None:
    scheduler = make_scheduler(blocks=8, tokens=64)
    for n in range(4):
        scheduler.add(make_request(f"r{n}", 20, max_tokens=40, arrival=n))
    outputs = run(scheduler)
    assert scheduler.stats.preemptions > 0
    for n in range(4):
        assert answer_of(outputs, f"r{n}") == expected_answer(make_request(f"r{n}", 20).token_ids, 40)
    ends = [output.request_id for output in outputs if output.finish_reason]
    assert ends[0] == "r0", "the oldest must not be held back by younger ones"


def test_a_prefix_is_computed_once_and_its_hits_are_counted() -> None:
    scheduler, device = make_scheduler(), Device(16)
    shared = list(range(48))
    scheduler.add(make_request("a", [*shared, 1], max_tokens=2))
    run(scheduler, device=device)
    scheduler.add(make_request("b", [*shared, 2], max_tokens=2))
    outputs = run(scheduler, device=device)
    assert [output.cached_tokens for output in outputs] == [48, 48]
    assert answer_of(outputs, "b") == expected_answer([*shared, 2], 2)


def test_tenants_never_share_a_prefix() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", range(64), max_tokens=2, cache_salt="tenant-1"))
    run(scheduler)
    scheduler.add(make_request("b", range(64), max_tokens=2, cache_salt="tenant-2"))
    assert run(scheduler)[0].cached_tokens == 0


def test_a_prompt_dropped_from_its_step_is_not_remembered_as_computed() -> None:
    """A victim of the step it was planned in has computed nothing: its blocks must not be found later."""
    scheduler = make_scheduler(blocks=8, seqs=4, tokens=128)
    for n in range(3):
        scheduler.add(make_request(f"r{n}", 31, max_tokens=60, arrival=n))
    outputs = run(scheduler)
    for n in range(3):
        assert answer_of(outputs, f"r{n}") == expected_answer(make_request(f"r{n}", 31).token_ids, 60)


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_abort_gives_everything_back(when: str) -> None:
    scheduler = make_scheduler(blocks=8, seqs=1 if when == "waiting" else 4)
    scheduler.add(make_request("old", 20, max_tokens=90, arrival=0))
    scheduler.add(make_request("young", 20, max_tokens=90, arrival=1))

    def abort(step: int) -> None:
        state = scheduler._requests.get("young")
        if state is not None and state.status.value == when:
            ended = scheduler.abort("young")
            assert ended is not None
            assert ended.finish_reason == FinishReason.ABORT

    outputs = run(scheduler, between=abort)
    assert "young" not in scheduler._requests
    assert answer_of(outputs, "old") == expected_answer(make_request("old", 20).token_ids, 90)
    assert scheduler.report().kv_blocks_used == 0


@pytest.mark.parametrize("when", ["waiting", "running", "preempted"])
def test_a_deadline_ends_a_request_wherever_it_is(when: str) -> None:
    scheduler = make_scheduler(blocks=8, seqs=1 if when == "waiting" else 4)
    scheduler.add(make_request("old", 20, max_tokens=90, arrival=0))
    scheduler.add(make_request("late", 20, max_tokens=90, arrival=1, deadline=1e6))
    ended = []

    def expire(_step: int) -> None:
        state = scheduler._requests.get("late")
        if state is not None and state.status.value == when:
            assert scheduler.expire(1e6 - 0.1) == []
            ended.extend(scheduler.expire(1e6))

    outputs = run(scheduler, between=expire)
    assert [(output.request_id, output.finish_reason) for output in ended] == [("late", FinishReason.TIMEOUT)]
    assert answer_of(outputs, "old") == expected_answer(make_request("old", 20).token_ids, 90)
    assert scheduler.report().kv_blocks_used == 0


def test_an_error_is_its_requests_alone_and_what_it_computed_is_never_found_again() -> None:
    scheduler, device = make_scheduler(), Device(16)
    shared = list(range(40))
    scheduler.add(make_request("broken", [*shared, 1], max_tokens=4))
    scheduler.add(make_request("fine", 20, max_tokens=4))
    plan = scheduler.plan(0.0)
    assert plan is not None
    result = device.execute(plan)
    rows = tuple(replace(r, token_ids=(), error="no") if r.request_id == "broken" else r for r in result.rows)
    outputs = scheduler.update(plan, replace(result, rows=rows))
    assert [(o.request_id, o.finish_reason, o.error) for o in outputs] == [
        ("broken", FinishReason.ERROR, "no"),
        ("fine", None, None),
    ]
    scheduler.check_integrity()
    scheduler.add(make_request("next", [*shared, 1], max_tokens=4))
    outputs = run(scheduler, device=device)
    assert next(output for output in outputs if output.request_id == "next").cached_tokens == 0


def test_recomputation_is_not_counted_as_prefix_queries() -> None:
    scheduler = make_scheduler(blocks=8, tokens=64)
    for n in range(4):
        scheduler.add(make_request(f"r{n}", 20, max_tokens=40, arrival=n))
    run(scheduler)
    assert scheduler.stats.preemptions > 0
    assert (scheduler.stats.prefix_queried_tokens, scheduler.stats.prefix_hit_tokens) == (80, 0)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(8, 40),
    seqs=st.integers(1, 8),
    tokens=st.integers(8, 80),
    prefix=st.booleans(),
    ahead=st.integers(0, 1),
)
def test_any_crowd_is_answered_as_if_each_were_alone(
    seed: int, blocks: int, seqs: int, tokens: int, prefix: bool, ahead: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(blocks=blocks, block_size=4, seqs=seqs, tokens=max(tokens, seqs), prefix=prefix)
    longest = blocks * 4
    asked: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()

    def disturb(step: int) -> None:
        if step < 60 and rng.random() < 0.4:
            answer = rng.randint(1, longest // 2)
            prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, longest - answer))]
            asked[name := f"r{len(asked)}"] = (prompt, answer)
            scheduler.add(make_request(name, prompt, max_tokens=answer, arrival=step))
        if asked and rng.random() < 0.05:
            name = rng.choice(list(asked))
            if scheduler.abort(name) is not None:
                aborted.add(name)

    outputs = run(scheduler, between=disturb, ahead=ahead, at_least=60)
    for name, (prompt, answer) in asked.items():
        if name not in aborted:
            assert answer_of(outputs, name) == expected_answer(prompt, answer)
