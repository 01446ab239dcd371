"""A request can be ended in every state, by its client, its deadline or an error, and frees all its memory."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest
from simulation import Device, add, answer_of, expected, make_engine, make_request, news, run

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.request import FinishReason
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import RequestOutput
from octavo_engine.core.step_builder import StepBuilder
from octavo_engine.engine.scheduler_stats import StatsReader


def find(scheduler: Scheduler, state: str) -> RequestState | None:
    """A request named "it..." in that state."""
    for request in scheduler._requests.values():
        found = "swapped" if request.swapped is not None else request.status.value
        if found == state and request.request_id.startswith("it"):
            return request
    return None


def engine_with(state: str) -> tuple[Scheduler, Device, list[RequestState]]:
    """An engine and requests of which one named "it..." comes into the state."""
    rules = {"swap_blocks": 16, "swap_block_seconds": 0.0} if state == "swapped" else {}
    scheduler, device = make_engine(blocks=8, seqs=1 if state == "waiting" else 4, **rules)
    requests = [add(scheduler, "old", 20, max_tokens=90, arrival=0.0)]
    requests += [add(scheduler, f"it{n}", 20, max_tokens=70, arrival=1.0 + n, timeout=1e6) for n in range(2)]
    if state == "forking":
        tokens = requests[0].token_ids
        requests.append(add(scheduler, "it9", tokens, max_tokens=20, seed=1, fork_of="old", timeout=1e6))
    return scheduler, device, requests


STATES = ["waiting", "forking", "running", "requeued", "swapped"]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.TIMEOUT])
@pytest.mark.parametrize("state", STATES)
def test_a_request_can_be_ended_in_every_state_and_gives_everything_back(
    state: str, reason: FinishReason, ahead: int
) -> None:
    scheduler, device, requests = engine_with(state)
    ended: list[RequestOutput] = []

    def end(_step: int) -> None:
        request = find(scheduler, state)
        if request is None or ended:
            return
        if reason is FinishReason.TIMEOUT:
            for other in scheduler._requests.values():
                other.deadline = 1e6 if other is request else 2e6
            assert scheduler.next_deadline() == 1e6
            assert scheduler.expire(1e6 - 0.1) == []
            ended.extend(scheduler.expire(1e6))
        else:
            output = scheduler.abort(request.request_id)
            assert output is not None
            ended.append(output)
            assert scheduler.abort(request.request_id) is None
        scheduler.check_integrity()

    outputs = run(scheduler, device=device, between=end, ahead=ahead)
    assert [output.finish_reason for output in ended] == [reason]
    gone = ended[0].request_id
    for request in requests:
        if request.request_id != gone:
            assert answer_of(outputs, request.request_id) == expected(request)
    sent = answer_of(outputs, gone)
    whole = next(expected(request) for request in requests if request.request_id == gone)
    assert sent == whole[: len(sent)]
    assert StatsReader(scheduler).read().kv_blocks_used == 0
    assert all(swap.available == swap.num_blocks for swap in scheduler.memory.swap.pools)


@pytest.mark.parametrize("state", ["running", "requeued", "swapped"])
def test_an_error_ends_its_request_in_every_state_in_which_results_are_under_way(state: str) -> None:
    """A request may be preempted, or swapped out, by a later plan when the error of its last step arrives."""
    scheduler, device, requests = engine_with(state)
    outputs: list[RequestOutput] = []
    launched = deque()
    failed = ""
    for number in range(2_000):
        plan = scheduler.schedule(float(number))
        if plan is not None:
            launched.append((plan, device.execute(plan)))
        if len(launched) > 1 or (launched and plan is None):
            plan, result = launched.popleft()
            request = find(scheduler, state)
            sampling = scheduler._launched[0]
            if not failed and request in sampling:
                failed = request.request_id
                result = replace(result, errors={sampling.index(request): (FinishReason.ERROR, "no")})
            outputs += news(scheduler.update(plan, result, float(number)))
            scheduler.check_integrity()
    assert failed
    assert [(o.finish_reason, o.error) for o in outputs if o.request_id == failed][-1] == (FinishReason.ERROR, "no")
    for request in requests:
        answer = answer_of(outputs, request.request_id)
        assert answer == expected(request)[: len(answer)]
        assert (answer == expected(request)) == (request.request_id != failed)
    assert not scheduler.has_work
    assert StatsReader(scheduler).read().kv_blocks_used == 0
    assert all(swap.available == swap.num_blocks for swap in scheduler.memory.swap.pools)


def test_only_a_request_that_is_lost_a_second_time_ends() -> None:
    """Two launched steps lose all requests. The next has no room for each of them: the second loss is the same."""
    scheduler, device = make_engine()
    requests = [add(scheduler, name, 50, max_tokens=20) for name in "abcd"]
    lost = {request.request_id: (FinishReason.MEMORY, "no") for request in requests}
    outputs: list[RequestOutput] = []
    launched, losses = deque(), 0
    while scheduler.has_work:
        if (plan := scheduler.schedule(0.0)) is not None:
            launched.append((plan, device.execute(plan)))
        if len(launched) > 1 or plan is None:
            plan, result = launched.popleft()
            if losses < 2 and len(plan.decode_rows) == len(requests):
                result, losses = replace(result, lost=lost), losses + 1
            outputs += news(scheduler.update(plan, result, 0.0))
            scheduler.check_integrity()
    assert losses == 2
    assert all(answer_of(outputs, request.request_id) == expected(request) for request in requests)


def test_an_error_is_its_requests_alone_and_what_it_computed_is_never_found_again() -> None:
    scheduler, device = make_engine()
    shared = list(range(40))
    add(scheduler, "broken", [*shared, 1], max_tokens=4)
    add(scheduler, "fine", 20, max_tokens=4)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    result = replace(device.execute(plan), errors={0: (FinishReason.ERROR, "no")})
    outputs = scheduler.update(plan, result, 0.0)
    assert [(o.request_id, o.finish_reason, o.error) for o in news(outputs)] == [
        ("broken", FinishReason.ERROR, "no"),
        ("fine", None, None),
    ]
    assert outputs.events[0].token_ids == ()
    scheduler.check_integrity()
    add(scheduler, "next", [*shared, 1], max_tokens=4)
    outputs_of_next = [o for o in run(scheduler, device=device) if o.request_id == "next"]
    assert outputs_of_next[0].cached_tokens == 0


@pytest.mark.parametrize("kinds", ["full", "full + sliding"])
def test_an_error_leaves_the_shared_prefix_that_others_computed(kinds: str) -> None:
    """The failed tokens come after three blocks that another request had left in the prefix cache."""
    groups = [KVGroup(64), KVGroup(64, "sliding", 16)][: 1 + kinds.count("+")]
    scheduler, device = make_engine(groups=groups)
    shared = list(range(48))
    add(scheduler, "first", [*shared, 1], max_tokens=1)
    run(scheduler, device=device)
    broken = add(scheduler, "broken", [*shared, *range(900, 940)], max_tokens=4)
    while True:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        result = device.execute(plan)
        failed = bool(result.token_ids)
        scheduler.update(plan, replace(result, errors={0: (FinishReason.ERROR, "no")} if failed else {}), 0.0)
        if failed:
            break
    assert (broken.cached_tokens, broken.finish_reason) == (48, FinishReason.ERROR)
    scheduler.check_integrity()
    for name, prompt in (("shared", [*shared, 2]), ("same", [*shared, *range(900, 940)])):
        add(scheduler, name, prompt, max_tokens=1)
        assert run(scheduler, device=device)[-1].cached_tokens == 48, "no block less, and none that failed"


def test_an_error_of_a_fork_leaves_what_its_parent_computed() -> None:
    scheduler, device = make_engine()
    prompt = list(range(40))
    add(scheduler, "parent", prompt, max_tokens=40, seed=1)
    fork = add(scheduler, "fork", prompt, max_tokens=60, seed=2, fork_of="parent")
    while fork.num_output < 20:
        plan = scheduler.schedule(0.0)
        assert plan is not None
        scheduler.update(plan, device.execute(plan), 0.0)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    index = plan.decode_rows.index(fork.row)
    scheduler.update(plan, replace(device.execute(plan), errors={index: (FinishReason.ERROR, "no")}), 0.0)
    assert fork.finish_reason is FinishReason.ERROR
    add(scheduler, "next", prompt, max_tokens=1)
    assert [o.cached_tokens for o in run(scheduler, device=device) if o.request_id == "next"] == [32]


def test_all_are_ended_at_once_and_their_results_are_not_reported() -> None:
    scheduler, device = make_engine(seqs=2)
    for n in range(4):
        add(scheduler, f"r{n}", 20, max_tokens=9)
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert {o.request_id for o in scheduler.abort_all()} == {"r0", "r1", "r2", "r3"}
    assert news(scheduler.update(plan, device.execute(plan), 0.0)) == []
    assert not scheduler.has_work
    scheduler.check_integrity()


def test_a_request_for_its_prompt_alone_ends_without_tokens() -> None:
    """Even if the next token would end it."""
    scheduler, device = make_engine(tokens=16)
    request = add(scheduler, "a", 40, max_tokens=0, stop=tuple(range(50_000)))
    *_, last = run(scheduler, device=device)
    assert (last.token_ids, last.finish_reason, last.stop_token) == ((), "length", None)
    assert request.finish_reason == "length"


def test_a_prompt_that_is_read_takes_nothing_from_caches() -> None:
    """Neither the prefix cache, nor a fork's parent, nor after a preemption the swap space."""
    scheduler, device = make_engine(blocks=16, tokens=128, swap_blocks=8, swap_block_seconds=0.0)
    add(scheduler, "a", 60, max_tokens=2)
    run(scheduler, device=device)
    same = make_request("a", 60, max_tokens=40)
    for name, parent, asked, cached in (("b", None, None, 48), ("c", "b", 0, 0)):
        sampling = replace(same.sampling, prompt_logprobs=asked)
        state = scheduler.add(replace(same, request_id=name, sampling=sampling, fork_of=parent), 0.0)
        scheduler.schedule(0.0)
        assert (state.status, state.cached_tokens, state.computed) == (Status.RUNNING, cached, 60)
        if name == "c":
            scheduler.planner.preempt(scheduler._requests["b"], StepBuilder(128))
            scheduler.planner.preempt(state, StepBuilder(128))
            assert state.swapped is None and scheduler._requests["b"].swapped is not None
