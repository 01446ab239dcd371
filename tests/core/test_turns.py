"""Requests that decode, and chunks, take turns if the contexts that a step reads would together take long to read."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from simulation import add, answer_of, expected, limit_context, make_engine, make_state, step

from octavo_engine.core.running import RunningRequests
from octavo_engine.core.step_cost import FIRST_CONTEXT, LEAST_CONTEXT, SHORT_STEP, StepCost

LIMIT = 200


@pytest.mark.parametrize(("limit", "least", "most"), [(LIMIT, 2 * 90, LIMIT), (80, 90, 90 + 8 + 80 // 2)])
def test_long_contexts_take_turns_and_a_short_one_of_another_key_is_in_every_step(
    limit: int, least: int, most: int
) -> None:
    """Also if each of the long ones is longer than the limit, and thus alone in its turn but for the short one."""
    scheduler, device = make_engine(blocks=128, seqs=8, tokens=1024)
    limit_context(scheduler, limit)
    long = [add(scheduler, f"r{number}", 90, max_tokens=8, tenant="rude") for number in range(6)]
    short = add(scheduler, "s", 10, max_tokens=20, tenant="other")
    outputs, tokens, lengths = [], defaultdict[str, list[int]](list), list[int]()
    for number in range(100):
        if not scheduler.has_work:
            break
        plan, some = step(scheduler, device)
        lengths.append(sum(plan.decode_starts))
        outputs += some
        for output in some:
            tokens[output.request_id].append(number)
    assert least <= max(lengths) <= most
    assert tokens["s"] == list(range(20))
    for state in long:
        assert (
            max(
                after - before
                for before, after in zip(tokens[state.request_id], tokens[state.request_id][1:], strict=False)
            )
            <= 6
        )
    for state in (*long, short):
        assert answer_of(outputs, state.request_id) == expected(state)


def test_all_decode_in_each_step_if_their_contexts_are_short_together() -> None:
    scheduler, device = make_engine(blocks=128, seqs=8, tokens=1024)
    states = [add(scheduler, f"r{number}", 90, max_tokens=8, tenant=f"t{number % 2}") for number in range(6)]
    limit_context(scheduler, sum(state.prompt_len + 7 for state in states))
    plans = [step(scheduler, device)[0] for _ in range(8)]
    assert [len(plan.decode_rows) for plan in plans] == [0] + [6] * 7
    assert not scheduler.has_work


def test_choices_of_a_long_prompt_begin_in_turn() -> None:
    """Each computes the prompt's last token, which reads the whole prompt: 35 of 8,000 tokens took two seconds."""
    scheduler, device = make_engine(blocks=128, seqs=8, tokens=1024)
    limit_context(scheduler, LIMIT)
    states = [add(scheduler, "r", 90, max_tokens=3)]
    states += [
        add(scheduler, f"r{number}", states[0].request.prompt_token_ids, 3, seed=number, fork_of="r")
        for number in range(1, 7)
    ]
    outputs, most = [], 0
    while scheduler.has_work:
        plan, some = step(scheduler, device)
        outputs += some
        most = max(most, sum(chunk.start for chunk in plan.chunks))
    assert 2 * 89 <= most <= LIMIT
    for state in states:
        assert answer_of(outputs, state.request_id) == expected(state)


def test_a_prompt_with_few_cached_tokens_begins_beside_one_that_is_longer_than_the_limit() -> None:
    scheduler, device = make_engine(blocks=200, block_size=4, tokens=16)
    first = add(scheduler, "first", 17, max_tokens=1, tenant="b")
    step(scheduler, device)
    step(scheduler, device)
    limit_context(scheduler, 40)
    long = add(scheduler, "long", 200, max_tokens=1, tenant="a")
    while long.computed <= 40:
        step(scheduler, device)
    again = add(scheduler, "again", first.request.prompt_token_ids, max_tokens=1, tenant="b")
    _, outputs = step(scheduler, device)
    assert [output.request_id for output in outputs] == ["again"]
    assert again.cached_tokens == 16
    assert long.finish_reason is None


def test_no_request_is_preempted_for_a_prompt_that_must_not_read_its_cached_blocks_yet() -> None:
    scheduler, device = make_engine(blocks=200, block_size=4, seqs=2, tokens=16, policy="priority")
    first = add(scheduler, "first", 17, max_tokens=1, tenant="b")
    step(scheduler, device)
    step(scheduler, device)
    limit_context(scheduler, 20)
    long = add(scheduler, "long", 200, max_tokens=1, tenant="a")
    add(scheduler, "less important", 10, max_tokens=60, tenant="b", priority=5)
    while long.computed <= 20:
        step(scheduler, device)
    add(scheduler, "again", first.request.prompt_token_ids, max_tokens=1, tenant="b")
    while long.finish_reason is None:
        assert scheduler.counters.preemptions == 0
        step(scheduler, device)
    while scheduler.has_work:
        step(scheduler, device)
    assert scheduler.counters.preemptions == 0, "there was room for it when its turn came"


def running(*lengths: tuple[str, float, int]) -> RunningRequests:
    """Requests of (tenant, weight, context) that decode."""
    found = RunningRequests(len(lengths))
    for number, (tenant, weight, context) in enumerate(lengths):
        state = make_state(f"{tenant}{number}", 1, tenant=tenant, weight=weight)
        state.computed = context
        found.add(state)
        found.begin_decoding(state)
    return found


def test_keys_read_by_their_weights_and_each_request_has_its_turn() -> None:
    rows = running(*[("a", 1.0, 100)] * 8, *[("b", 3.0, 100)] * 8, ("c", 1.0, 1000))
    read, turns = Counter[str](), Counter[str]()
    for _ in range(500):
        waiting_longest = next(iter(rows.decoding))
        taken = rows.in_turn(900)
        assert waiting_longest in taken
        others = sum(state.computed for state in taken if state is not waiting_longest)
        assert others <= 900 - min(waiting_longest.computed, 450)
        for state in taken:
            read[state.tenant] += state.computed
            turns[state.request_id] += 1
    assert read["b"] / read["a"] == pytest.approx(3, rel=0.2)
    assert min(turns.values()) >= 15, "one that is longer than the limit has its turn as well"


# How much a step may read is learned.

BASE, ROW, READ = 0.03, 0.001, 6e-6
"""Seconds of SmolLM2 on two cores: a step, each of its tokens, and each token of context."""


def observe(cost: StepCost, rows: int, context: int, factor: float = 1.0) -> float:
    """Let a step of `rows` decodes be observed that read `context`; return its seconds."""
    seconds = (BASE + rows * ROW + context * READ) * factor
    cost.observe(0, seconds, rows, context)
    return seconds


def learned(factor: float = 1.0) -> StepCost:
    """What a server has learned from a prompt and a short answer."""
    cost = StepCost()
    cost.observe(512, (BASE + 512 * ROW) * factor)
    for _ in range(50):
        observe(cost, 1, 50, factor)
    return cost


def test_ordinary_loads_never_take_turns() -> None:
    """One user, 16 users of 2,000 tokens, and 48 users of short contexts, one after another or all at once."""
    for users, length in ((1, 8000), (16, 2000), (48, 300)):
        for first in (1, users):
            cost = learned()
            for rows in range(first, users + 1):
                for _ in range(20):
                    assert rows * length <= cost.context_limit
                    observe(cost, rows, rows * length)


def test_contexts_that_take_long_to_read_are_limited_to_half_of_a_short_step() -> None:
    """48 answers to prompts of 8,000 tokens: a step took 2.3 s."""
    for rows in (48, 6):
        cost = learned()
        observe(cost, 48, 48 * 8000)
        for _ in range(10):
            observe(cost, rows, min(int(cost.context_limit), rows * 8000))
        assert cost.context_limit * READ == pytest.approx(SHORT_STEP / 2, rel=0.05)


def test_more_and_more_is_read_while_it_takes_little_time() -> None:
    cost, most = learned(0.001), 0
    while most < 10**6:
        context = int(cost.context_limit)
        assert context > most
        most = context
        observe(cost, 256, context, 0.001)


def test_more_is_read_though_each_step_has_prompts_or_drafts() -> None:
    """A GPU never waits for a step without them; two cores that take long for the prompts learn nothing from it."""
    fast, slow = learned(0.001), learned()
    for _ in range(10):
        fast.observe(2048, 0.03, 256, int(fast.context_limit))
        slow.observe(512, 0.8, 48, int(slow.context_limit))
    assert fast.context_limit > 10**6
    assert slow.context_limit == FIRST_CONTEXT


@pytest.mark.parametrize("length", [8000, 5000, 4100, 2000, 100])
def test_a_step_that_was_slow_by_chance_does_not_count_for_long(length: int) -> None:
    cost = learned()
    observe(cost, 16, 32_000, 20.0)
    assert cost.context_limit == LEAST_CONTEXT
    for _ in range(12):
        observe(cost, 1, int(cost.context_limit / length) * length)
    assert cost.context_limit >= FIRST_CONTEXT


def test_a_slow_device_reads_as_much_as_takes_twice_as_long_as_its_weights() -> None:
    cost = learned(30.0)  # 0.9 s a step
    for _ in range(10):
        observe(cost, 1, min(int(cost.context_limit), 100_000), 30.0)
    assert cost.context_limit * READ * 30 == pytest.approx(2 * (BASE + ROW) * 30, rel=0.05)


def test_many_rows_of_short_contexts_are_not_taken_for_long_contexts() -> None:
    cost = learned(30.0)
    for _ in range(10):
        observe(cost, 48, 48 * 200, 30.0)
    assert cost.context_limit >= FIRST_CONTEXT


def test_long_contexts_leave_prompts_as_much_time_as_they_take_themselves() -> None:
    """A step took four times as long as its decodes, which made 1.2 s of 0.3 s."""
    cost = learned()
    for _ in range(100):
        seconds = observe(cost, 5, 40_000)
    assert seconds + cost.tokens_within(3.75, 2048) * ROW == pytest.approx(2 * seconds, rel=0.05)
