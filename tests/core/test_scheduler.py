"""The scheduler alone: steps, results and ends. There is no torch; a simulated device checks every read and write."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import (
    Device,
    add,
    answer_of,
    expected,
    expected_answer,
    make_engine,
    make_request,
    make_scheduler,
    make_state,
    news,
    run,
    step,
)

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request import FinishReason
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step_builder import StepBuilder
from octavo_engine.core.step_cost import FIRST_TOKENS
from octavo_engine.engine.adaptive_limits import AdaptiveLimits
from octavo_engine.engine.scheduler_stats import StatsReader
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.model_outputs import TokenLogprobs

# Steps.


@pytest.mark.parametrize("ahead", [0, 1])
def test_one_request_is_answered_in_full(ahead: int) -> None:
    scheduler = make_scheduler()
    request = add(scheduler, "a", 20, max_tokens=5)
    outputs = run(scheduler, ahead=ahead)
    assert answer_of(outputs, "a") == expected(request)
    assert outputs[-1].finish_reason == FinishReason.LENGTH
    assert StatsReader(scheduler).read().kv_blocks_used == 0


def test_long_prompts_are_cut_and_mixed_with_decodes() -> None:
    scheduler, device = make_engine(tokens=16)
    short = add(scheduler, "short", 4, max_tokens=10)
    step(scheduler, device)
    long = add(scheduler, "long", 100, max_tokens=2)
    for number in range(3):
        plan, _ = step(scheduler, device)
        assert (plan.decode_rows, plan.decode_starts) == ([short.row], [4 + number])
        assert [(c.row, c.start, c.num_tokens, c.samples) for c in plan.chunks] == [(long.row, number * 15, 15, False)]


@pytest.mark.parametrize("ahead", [0, 1])
def test_every_decode_gets_a_token_in_every_step_beside_any_load_of_prompts(ahead: int) -> None:
    """Five decode while prompts keep coming: no step leaves any of them out until it has its answer."""
    scheduler, device = make_engine(blocks=256, tokens=16, seqs=8)
    decoding = [add(scheduler, f"decode{n}", 2, max_tokens=40) for n in range(5)]
    step(scheduler, device)
    assert all(request.num_output == 1 for request in decoding)
    launched = deque()
    for number in range(39):
        if number % 3 == 0:
            add(scheduler, f"prefill{number}", 150, max_tokens=2)
        plan = scheduler.schedule(0.0)
        assert plan is not None
        assert {request.row for request in decoding} <= set(plan.decode_rows)
        launched.append((plan, device.execute(plan)))
        if len(launched) > ahead:
            scheduler.update(*launched.popleft(), 0.0)
    while launched:
        scheduler.update(*launched.popleft(), 0.0)
    assert all(request.finish_reason == FinishReason.LENGTH for request in decoding)


def test_the_prompt_at_the_head_gets_all_that_decodes_leave() -> None:
    scheduler, device = make_engine(blocks=256, tokens=16, seqs=8)
    for n in range(5):
        add(scheduler, f"decode{n}", 2, max_tokens=90)
    step(scheduler, device)
    heads = [add(scheduler, f"prompt{n}", 110, max_tokens=1) for n in range(3)]
    for number in range(30):
        plan, _ = step(scheduler, device)
        assert len(plan.decode_rows) == 5
        first = plan.chunks[0]
        assert first.row == heads[number // 10].row or first.samples
        assert first.num_tokens == 11


def test_with_every_seat_taken_and_no_budget_to_spare_a_prompt_still_moves_in_every_step() -> None:
    scheduler, device = make_engine(blocks=64, tokens=8, seqs=8)
    for n in range(7):
        add(scheduler, f"decode{n}", 1, max_tokens=60)
    step(scheduler, device)
    prompt = add(scheduler, "prompt", 50, max_tokens=1)
    for number in range(50):
        plan, _ = step(scheduler, device)
        assert len(plan.decode_rows) == 7
        assert [(chunk.start, chunk.num_tokens) for chunk in plan.chunks] == [(number, 1)]
    assert prompt.finish_reason == FinishReason.LENGTH


def test_a_budget_that_leaves_some_seats_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="at least max_num_seqs"):
        SchedulerSettings(max_num_seqs=9, max_num_batched_tokens=8, max_model_len=64)


def test_the_next_step_is_planned_before_the_last_ones_tokens_are_here() -> None:
    scheduler, device = make_engine()
    request = add(scheduler, "a", 5, max_tokens=3)
    plans = [scheduler.schedule(0.0), scheduler.schedule(0.0), scheduler.schedule(0.0)]
    assert [plan.num_tokens for plan in plans if plan] == [5, 1, 1]
    assert request.num_output == 0
    assert scheduler.schedule(0.0) is None, "the third token is the last: nothing is computed after it"
    outputs = [o for plan in plans if plan for o in news(scheduler.update(plan, device.execute(plan), 0.0))]
    assert answer_of(outputs, "a") == expected_answer(make_request("a", 5).prompt_token_ids, 3)


def test_a_stop_found_one_step_late_wastes_that_step_and_no_client_sees_it() -> None:
    scheduler, device = make_engine()
    answer = expected(make_state("a", 5, max_tokens=9))
    request = add(scheduler, "a", 5, max_tokens=9, stop=(answer[2],))
    outputs = run(scheduler, device=device, ahead=1)
    assert answer_of(outputs, "a") == answer[:3]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token) == (FinishReason.STOP, answer[2])
    assert len(device.rows[0].tokens) == 5 + 3 + 1, "exactly one token too many was computed"
    assert len(request.token_ids) == 5 + 3 + 1


def test_a_stop_token_before_min_tokens_is_an_ordinary_one() -> None:
    scheduler = make_scheduler()
    answer = expected(make_state("a", 5, max_tokens=9))
    request = make_request("a", 5, max_tokens=9, stop=(answer[1], answer[4]))
    scheduler.add(replace(request, sampling=replace(request.sampling, min_tokens=3)), 0.0)
    outputs = run(scheduler)
    assert answer_of(outputs, "a") == answer[:5]
    assert outputs[-1].finish_reason == FinishReason.STOP


def test_plain_tokens_come_in_columns_and_first_and_last_ones_and_logprobs_as_events() -> None:
    scheduler, device = make_engine()
    add(scheduler, "a", 5, max_tokens=4)
    logprobs = TokenLogprobs(1, -0.5, 1, ())
    for number, in_columns in enumerate([False, True, False, False]):
        plan = scheduler.schedule(0.0)
        assert plan is not None
        result = device.execute(plan)
        if number == 2:
            result = replace(result, logprobs={0: (logprobs,)})
        outputs = scheduler.update(plan, result, 0.0)
        assert (outputs.request_ids == ["a"]) == in_columns
        assert len(outputs.events) == 1 - in_columns
        assert [o.token_ids for o in outputs.each()] == [tuple(result.token_ids)]
        if number == 2:
            assert outputs.events[0].logprobs == (logprobs,)
    assert outputs.events[0].finish_reason == FinishReason.LENGTH


def test_the_first_event_says_how_long_the_request_waited() -> None:
    scheduler, device = make_engine(seqs=1)
    add(scheduler, "a", 5, max_tokens=2, arrival=10.0)
    add(scheduler, "b", 5, max_tokens=2, arrival=10.0)
    outputs = [o for now in (10.0, 11.0, 12.5, 13.0) for o in step(scheduler, device, now)[1]]
    waits = {o.request_id: o.queue_seconds for o in outputs}
    assert waits == {"a": 0.0, "b": 2.5}


# What is refused.


@pytest.mark.parametrize("kind", ["full", "sliding", "recurrent"])
def test_what_can_never_fit_is_refused_at_the_door_with_need_have_and_knob(kind: str) -> None:
    blocks = {"full": 8, "sliding": 3, "recurrent": 1}[kind]
    groups = [KVGroup(99), KVGroup(blocks, kind, 20 if kind == "sliding" else None)]  # type: ignore[arg-type]
    scheduler, device = make_engine(groups=groups, blocks=99, tokens=32)
    fits = {"full": 128, "sliding": 48, "recurrent": 0}[kind]
    if fits:
        add(scheduler, "fits", fits - 4, max_tokens=4)
        assert len(answer_of(run(scheduler, device=device), "fits")) == 4
    need = {"full": 9, "sliding": 4, "recurrent": 2}[kind]
    with pytest.raises(NotAdmissibleError) as refusal:
        add(scheduler, "never", fits - 3 if fits else 4, max_tokens=4)
    message = str(refusal.value)
    assert f"{fits + 1 if fits else 8} tokens need {need} KV blocks of 16" in message
    assert f"there are {blocks}" in message
    assert "--kv-cache-memory" in message
    assert not scheduler.has_work
    scheduler.check_integrity()


# Figures.


def test_blocks_and_wasted_slots_are_counted_exactly() -> None:
    """Twenty tokens in blocks of 16 leave 12 slots; a state has no slots; a sliding group keeps whole blocks."""
    scheduler, device = make_engine(groups=[KVGroup(8), KVGroup(8, "sliding", 20), KVGroup(8, "recurrent")], tokens=64)
    add(scheduler, "a", 20, max_tokens=9)
    step(scheduler, device)  # up to the block boundary, where a recurrent group leaves a snapshot
    step(scheduler, device)
    stats = StatsReader(scheduler).read()
    assert stats.kv_blocks_total == 24
    assert stats.kv_usage == 2 / 8
    assert stats.kv_blocks_used == 2 + 2 + 1
    assert stats.kv_wasted_slots == 12 + 12
    assert (stats.running, stats.waiting) == (1, 0)


def test_waiting_requests_are_counted() -> None:
    scheduler, device = make_engine(seqs=1)
    add(scheduler, "a", 20)
    add(scheduler, "b", 30)
    add(scheduler, "c", 7)
    step(scheduler, device)
    stats = StatsReader(scheduler).read()
    assert (stats.running, stats.waiting) == (1, 2)
    scheduler.abort("b")
    assert StatsReader(scheduler).read().waiting == 1


def test_step_durations_are_reported_once() -> None:
    scheduler, device = make_engine()
    add(scheduler, "a", 5, max_tokens=2)
    step(scheduler, device)
    step(scheduler, device)
    assert StatsReader(scheduler).read().step_seconds == [0.01, 0.01]
    assert StatsReader(scheduler).read().step_seconds == []


def test_recomputation_is_not_counted_as_prefix_queries() -> None:
    scheduler = make_scheduler(blocks=8, tokens=64)
    for n in range(4):
        add(scheduler, f"r{n}", 20, max_tokens=40, arrival=n)
    run(scheduler)
    assert scheduler.counters.preemptions > 0
    assert (scheduler.counters.prefix_queried_tokens, scheduler.counters.prefix_hit_tokens) == (80, 0)


def test_limits_that_move_bound_who_runs_and_how_much_prompt_a_step_holds() -> None:
    limits = AdaptiveLimits(8, 64)
    limits.running_limit, limits.chunk_limit = 3, 16
    memory = KVMemory([KVGroup(64)], 16, prefix_caching=True)
    scheduler = Scheduler(
        SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512), memory, limits
    )
    device = Device(16)
    for n in range(6):
        add(scheduler, f"r{n}", 40, max_tokens=5)
    running, chunks = [], []
    while scheduler.has_work:
        plan, _ = step(scheduler, device)
        running.append(len({*plan.decode_rows, *(chunk.row for chunk in plan.chunks)}))
        chunks.append(sum(chunk.num_tokens for chunk in plan.chunks))
    assert max(running) == 3
    assert max(chunks) == 16
    stats = StatsReader(scheduler).read()
    assert (stats.running_limit, stats.chunk_limit, stats.target_met) == (3, 16, True)


def test_on_a_slow_device_prompts_are_cut_so_that_no_step_takes_too_long() -> None:
    scheduler, device = make_engine(blocks=256, tokens=2048, max_step_seconds=3.0)
    for n in range(2):
        add(scheduler, f"r{n}", 1500, max_tokens=2)
    chunks = []
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        chunks.append(sum(chunk.num_tokens for chunk in plan.chunks))
        scheduler.update(plan, replace(device.execute(plan), seconds=0.05 + 0.02 * plan.num_tokens), 0.0)
    assert chunks[0] == FIRST_TOKENS
    assert all(100 < chunk <= 150 for chunk in chunks[1:-2])
    assert len(chunks) > 20


# Random requests.


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(8, 40),
    seqs=st.integers(1, 8),
    tokens=st.integers(8, 80),
    prefix=st.booleans(),
    ahead=st.integers(0, 1),
)
def test_random_requests_are_answered_as_if_each_were_alone(
    seed: int, blocks: int, seqs: int, tokens: int, prefix: bool, ahead: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(blocks=blocks, block_size=4, seqs=seqs, tokens=max(tokens, seqs), prefix=prefix)
    longest = blocks * 4
    asked: dict[str, RequestState] = {}
    aborted: set[str] = set()

    def disturb(number: int) -> None:
        if number < 60 and rng.random() < 0.4:
            answer = rng.randint(1, longest // 2)
            prompt = [rng.randint(0, 2) for _ in range(rng.randint(1, longest - answer))]
            name = f"r{len(asked)}"
            asked[name] = add(scheduler, name, prompt, max_tokens=answer, arrival=number, seed=len(asked))
        if asked and rng.random() < 0.05:
            name = rng.choice(list(asked))
            if scheduler.abort(name) is not None:
                aborted.add(name)

    outputs = run(scheduler, between=disturb, ahead=ahead, at_least=60)
    for name, request in asked.items():
        if name not in aborted:
            assert answer_of(outputs, name) == expected(request)


def test_what_a_request_computed_before_it_was_preempted_is_not_found_after_its_error() -> None:
    """Two plans are made at once: the second preempts the request whose first one's result is an error."""
    scheduler, device = make_scheduler(blocks=8), Device(16)
    add(scheduler, "broken", range(33), max_tokens=60)
    first = scheduler.schedule(0.0)
    assert first is not None
    result = replace(device.execute(first), errors={0: (FinishReason.ERROR, "no")})
    builder = StepBuilder(64)
    scheduler.planner.preempt(scheduler._requests["broken"], builder)
    assert news(scheduler.update(first, result, 0.0))[0].error == "no"
    scheduler.check_integrity()
    add(scheduler, "next", range(33), max_tokens=2)
    assert run(scheduler, device=device)[0].cached_tokens == 0


@pytest.mark.parametrize("reason", [FinishReason.ERROR, FinishReason.INVALID])
def test_a_request_that_cannot_be_sampled_ends_for_the_reason_that_the_worker_gives(reason: FinishReason) -> None:
    scheduler, device = make_scheduler(blocks=8), Device(16)
    add(scheduler, "a", range(3), max_tokens=60)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    [output] = news(scheduler.update(plan, replace(device.execute(plan), errors={0: (reason, "no token")}), 0.0))
    assert (output.finish_reason, output.error) == (reason, "no token")
