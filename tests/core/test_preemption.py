"""Preemption: which requests give up their blocks, how often, and that swapped blocks return unchanged."""

from __future__ import annotations

import pytest
from simulation import Device, add, answer_of, expected, make_engine, make_state, run, step

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.preemption import choose_victim, choose_victims
from octavo_engine.core.request import FinishReason
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import BlockOpKind, StepPlan
from octavo_engine.engine.scheduler_stats import StatsReader

GROUPS = {
    "full": [KVGroup(8)],
    "sliding": [KVGroup(8, "sliding", 40)],
    "recurrent": [KVGroup(12, "recurrent"), KVGroup(8)],
    "all": [KVGroup(8), KVGroup(8, "sliding", 20), KVGroup(12, "recurrent")],
}


def add_many(scheduler: Scheduler, count: int = 4, prompt: int = 20, max_tokens: int = 40) -> list[RequestState]:
    """Requests that do not all fit into 8 blocks."""
    return [add(scheduler, f"r{n}", prompt, max_tokens=max_tokens, arrival=float(n), seed=n) for n in range(count)]


def finish(scheduler: Scheduler, device: Device, requests: list[RequestState], ahead: int = 0) -> list[str]:
    """Run to the end; the requests in the order in which they ended."""
    sent = {request.request_id: request.num_output for request in requests}
    outputs = run(scheduler, device=device, ahead=ahead)
    for request in requests:
        assert answer_of(outputs, request.request_id) == expected(request)[sent[request.request_id] :]
    assert scheduler.memory.blocks_used == 0
    assert all(swap.available == swap.num_blocks for swap in scheduler.memory.swap.pools)
    return [output.request_id for output in outputs if output.finish_reason]


# Whom.


def in_state(name: str, computed: int, priority: int = 0, arrival: float = 0.0) -> RequestState:
    request = make_state(name, 1, priority=priority, arrival=arrival)
    request.computed = computed
    return request


def importance(request: RequestState) -> int:
    return request.request.priority


def test_the_least_important_is_the_victim_whatever_it_loses() -> None:
    requests = [in_state("a", 5), in_state("b", 500, priority=2), in_state("c", 1, priority=1)]
    assert choose_victim(requests, importance, lambda _: [9], 1).request_id == "b"


def test_among_equals_the_one_that_loses_least_and_frees_enough_is_the_victim() -> None:
    requests = [in_state("a", 50), in_state("b", 10), in_state("c", 30)]
    gains = {"a": 4, "b": 0, "c": 2}
    assert choose_victim(requests, importance, lambda r: [gains[r.request_id]], 1).request_id == "c"
    assert choose_victim(requests, importance, lambda r: [gains[r.request_id]], 3).request_id == "a"
    assert choose_victim(requests, importance, lambda r: [gains[r.request_id]], 9).request_id == "b"


def test_of_two_that_lose_as_much_the_younger_is_the_victim() -> None:
    requests = [in_state("a", 5, arrival=1.0), in_state("b", 5, arrival=2.0)]
    assert choose_victim(requests, importance, lambda _: [9], 1).request_id == "b"


def test_several_are_preempted_for_one_only_if_that_is_enough() -> None:
    requests = [in_state("a", 5), in_state("b", 7), in_state("c", 1, priority=-1)]
    chosen = [request.request_id for request in choose_victims(requests, importance, lambda _: [2], [3])]
    assert chosen == ["a", "b"]
    assert choose_victims(requests, importance, lambda _: [2], [7]) == []
    assert len(choose_victims(requests, importance, lambda _: [2], [0])) == 1, "a seat is needed even where no block is"


def test_choose_victims_frees_enough_blocks_in_each_group() -> None:
    requests = [in_state(name, 5, arrival=-i) for i, name in enumerate("abc")]
    for needed, count in (([9, -4], 1), ([11, 0], 2), ([0, 5], 3), ([9, 7], 0)):
        assert len(choose_victims(requests, importance, lambda _: [10, 2], needed)) == count


def test_one_long_request_gives_way_though_it_holds_little_of_its_window() -> None:
    """The urgent one lacks blocks of the full group; each of the others holds 10 of those and 2 of the window's."""
    groups = [KVGroup(32), KVGroup(24, "sliding", 16)]
    scheduler, device = make_engine(
        groups=groups, blocks=32, tokens=256, policy="priority", prefix=False, watermark=0.0
    )
    slow = [add(scheduler, f"slow-{i}", 150, max_tokens=9, priority=1) for i in range(3)]
    for _ in range(4):
        step(scheduler, device)
    urgent = add(scheduler, "urgent", 150, max_tokens=3)
    step(scheduler, device)
    assert urgent.status is Status.RUNNING
    assert [request.status for request in slow].count(Status.REQUEUED) == 1
    finish(scheduler, device, [*slow, urgent])


@pytest.mark.parametrize("ahead", [0, 1])
def test_without_blocks_the_youngest_is_preempted_and_still_answered_in_full(ahead: int) -> None:
    scheduler, device = make_engine(blocks=8, tokens=64)
    requests = add_many(scheduler)
    ends = finish(scheduler, device, requests, ahead)
    assert StatsReader(scheduler).read().preemptions > 0
    assert ends[0] == "r0", "the oldest must not be held back by younger ones"


# How often.


@pytest.mark.parametrize("kinds", GROUPS)
@pytest.mark.parametrize("cap", [0, 1, 2])
def test_a_request_at_its_cap_is_never_preempted_again_and_ends(cap: int, kinds: str) -> None:
    """It is admitted again with all its blocks reserved, and no other can take what is reserved."""
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=8, tokens=64, max_preemptions=cap)
    requests = add_many(scheduler, 12, max_tokens=60)
    reserved = []

    def look(_step: int) -> None:
        for request in scheduler.running:
            if request.preemptions == cap:
                assert request.reserved
                reserved.append(request.request_id)
            else:
                assert not request.reserved
        for pool in scheduler.memory.pools:
            assert pool.reserved <= pool.available

    outputs = run(scheduler, device=device, between=look)
    for request in requests:
        assert answer_of(outputs, request.request_id) == expected(request)
    assert max(request.preemptions for request in requests) == cap
    assert reserved
    assert all(pool.reserved == 0 for pool in scheduler.memory.pools)


def test_reserved_blocks_are_taken_by_no_other() -> None:
    """Nine tokens in hand and five blocks reserved: a newcomer that needs four of the seven waits."""
    scheduler, device = make_engine(blocks=8, max_preemptions=0, watermark=0.0)
    first = add(scheduler, "first", 9, max_tokens=71)  # 80 tokens: 5 blocks
    step(scheduler, device)
    pool = scheduler.memory.pools[0]
    assert (pool.used, pool.reserved, first.reserved) == (1, 4, [4])
    second = add(scheduler, "second", 40, max_tokens=24)  # 64 tokens: 4 blocks, and 3 can be had
    third = add(scheduler, "third", 20, max_tokens=28)  # 48 tokens: 3 blocks
    step(scheduler, device)
    assert (second.status, third.status) == (Status.WAITING, Status.RUNNING)
    assert pool.available - pool.reserved == 0
    assert [request.request_id for request in scheduler.running] == ["first", "third"]
    finish(scheduler, device, [first, second, third])
    assert StatsReader(scheduler).read().preemptions == 0


# Computed anew.


def test_the_recompute_tax_is_counted_to_the_token() -> None:
    """One seat, no prefix cache: what the urgent request displaces has 16 + 16 tokens computed, and loses them."""
    scheduler, device = make_engine(seqs=1, tokens=16, policy="priority", prefix=False)
    slow = add(scheduler, "slow", 40, max_tokens=2, priority=1)
    step(scheduler, device)
    step(scheduler, device)
    urgent = add(scheduler, "urgent", 5, max_tokens=1)
    step(scheduler, device)
    assert (slow.status, slow.preemptions) == (Status.REQUEUED, 1)
    finish(scheduler, device, [slow, urgent])
    stats = StatsReader(scheduler).read()
    assert (stats.preemptions, stats.recomputed_tokens) == (1, 32)


def test_what_the_prefix_cache_still_has_is_not_computed_again() -> None:
    scheduler, device = make_engine(seqs=1, tokens=16, policy="priority")
    slow = add(scheduler, "slow", 40, max_tokens=9, priority=1)
    for _ in range(4):  # 16 + 16 + 8 tokens, then one of the answer
        step(scheduler, device)
    assert slow.computed == 41
    urgent = add(scheduler, "urgent", 5, max_tokens=1)
    step(scheduler, device)
    assert slow.status is Status.REQUEUED
    finish(scheduler, device, [slow, urgent])
    assert StatsReader(scheduler).read().recomputed_tokens == 41 - 32
    assert slow.cached_tokens == 0, "what is found again after a preemption is no hit of the client's"


# Swapped out and in.


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("kinds", GROUPS)
def test_what_was_swapped_out_comes_back_as_it_was(kinds: str, prefix: bool, ahead: int) -> None:
    scheduler, device = make_engine(
        groups=GROUPS[kinds], blocks=8, tokens=64, prefix=prefix, swap_blocks=32, swap_block_seconds=0.0
    )
    requests = add_many(scheduler, 6)
    finish(scheduler, device, requests, ahead)
    stats = StatsReader(scheduler).read()
    assert stats.swapped_out_blocks >= stats.swapped_in_blocks > 0
    if not prefix:
        assert stats.swapped_in_blocks == stats.swapped_out_blocks
        assert stats.recomputed_tokens == 0, "nothing is computed again"


def test_swapped_blocks_of_a_window_find_room_beside_what_the_prefix_cache_has_of_it() -> None:
    """A window of 20 blocks in a pool of 30: the urgent request leaves an earlier window of the same prefix there."""
    groups = [KVGroup(80), KVGroup(30, "sliding", 80)]
    scheduler, device = make_engine(
        groups=groups, block_size=4, seqs=1, tokens=20, policy="priority", swap_blocks=82, swap_block_seconds=0.0
    )
    slow = add(scheduler, "slow", [5] * 120 + list(range(120)), max_tokens=9, priority=1)
    before = [output for _ in range(13) for output in step(scheduler, device)[1]]
    urgent = add(scheduler, "urgent", [5] * 120 + [1], max_tokens=1)
    outputs = before + run(scheduler, device=device)
    assert (slow.preemptions, slow.swapped) == (1, None)
    assert answer_of(outputs, "slow") == expected(slow)
    assert answer_of(outputs, "urgent") == expected(urgent)
    assert StatsReader(scheduler).read().recomputed_tokens == 0


def displaced(**rules: object) -> tuple[Scheduler, Device, RequestState, StepPlan]:
    """One seat: a request of 41 computed tokens (3 blocks) gives way to an urgent one; the plan in which it does."""
    scheduler, device = make_engine(seqs=1, policy="priority", prefix=False, **rules)
    slow = add(scheduler, "slow", 40, max_tokens=9, priority=1, timeout=100.0)
    step(scheduler, device)
    step(scheduler, device)
    add(scheduler, "urgent", 50, max_tokens=3)
    plan, _ = step(scheduler, device)
    assert slow.status is Status.REQUEUED
    return scheduler, device, slow, plan


def test_blocks_that_are_swapped_are_counted_to_the_block() -> None:
    scheduler, device, slow, plan = displaced(swap_blocks=3, swap_block_seconds=0.0)
    assert [op.kind for op in plan.block_ops] == [BlockOpKind.SWAP_OUT] * 3
    assert sorted(op.target for op in plan.block_ops) == [0, 1, 2]
    assert slow.swapped is not None
    assert slow.swapped.computed == 41
    assert scheduler.memory.swap.pools[0].available == 0
    outputs = run(scheduler, device=device)
    assert answer_of(outputs, "slow") == expected(slow)[2:]
    stats = StatsReader(scheduler).read()
    assert (stats.swapped_out_blocks, stats.swapped_in_blocks, stats.recomputed_tokens) == (3, 3, 0)
    assert scheduler.memory.swap.pools[0].available == 3


def test_without_room_in_the_swap_space_it_is_computed_again() -> None:
    scheduler, device, slow, plan = displaced(swap_blocks=2, swap_block_seconds=0.0)
    assert plan.block_ops == ()
    assert slow.swapped is None
    run(scheduler, device=device)
    assert StatsReader(scheduler).read().recomputed_tokens == 41


def test_the_cheaper_way_is_taken_by_the_stated_estimate() -> None:
    """A token's time is what steps with prompts took: 0.01 s for 40 tokens. So 41 tokens are worth 41 * 0.25 ms.

    Three blocks move in that time if one takes 3.4 ms, and do not if it takes 3.5 ms.
    """
    for seconds, swaps in ((0.0034, 3), (0.0035, 0)):
        scheduler, *_ = displaced(swap_blocks=8, swap_block_seconds=seconds)
        assert StatsReader(scheduler).read().swapped_out_blocks == swaps


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.TIMEOUT])
def test_swap_space_comes_back_however_a_swapped_request_ends(reason: FinishReason) -> None:
    scheduler, device, slow, _ = displaced(swap_blocks=3, swap_block_seconds=0.0)
    if reason is FinishReason.TIMEOUT:
        (ended,) = scheduler.expire(100.0)
    else:
        output = scheduler.abort("slow")
        assert output is not None
        ended = output
    assert (ended.request_id, ended.finish_reason) == ("slow", reason)
    assert slow.swapped is None
    assert scheduler.memory.swap.pools[0].available == 3
    scheduler.check_integrity()
    run(scheduler, device=device)


def test_what_the_prefix_cache_still_has_is_not_moved() -> None:
    """Swapped out at a block boundary, with all three blocks remembered: it goes on from these."""
    scheduler, device = make_engine(seqs=1, swap_blocks=8, swap_block_seconds=0.0, policy="priority")
    slow = add(scheduler, "slow", 45, max_tokens=9, priority=1)
    for _ in range(4):
        step(scheduler, device)
    assert slow.computed == 48
    urgent = add(scheduler, "urgent", 10, max_tokens=3)
    step(scheduler, device)
    assert slow.swapped is not None
    finish(scheduler, device, [slow, urgent])
    stats = StatsReader(scheduler).read()
    assert (stats.swapped_out_blocks, stats.swapped_in_blocks, stats.recomputed_tokens) == (3, 0, 0)


def test_a_preempted_request_waits_for_its_token_that_is_on_the_way() -> None:
    scheduler, device = make_engine(seqs=1, policy="priority")
    slow = add(scheduler, "slow", 20, max_tokens=5, priority=1)
    first = scheduler.schedule(0.0)
    assert first is not None
    result = device.execute(first)
    add(scheduler, "urgent", 10, max_tokens=5)
    second = scheduler.schedule(0.0)
    assert second is not None
    urgent_result = device.execute(second)
    assert (slow.status, slow.in_flight) == (Status.REQUEUED, 1)
    scheduler.abort("urgent")
    assert scheduler.schedule(0.0) is None, "the seat is free, but its last token is not known yet"
    scheduler.update(first, result, 0.0)
    third = scheduler.schedule(0.0)
    assert third is not None
    assert third.new_rows[0].token_ids == tuple(slow.token_ids)
    scheduler.update(second, urgent_result, 0.0)
    scheduler.update(third, device.execute(third), 0.0)
    sent = slow.num_output
    assert answer_of(run(scheduler, device=device), "slow") == expected(slow)[sent:]


def test_what_others_computed_meanwhile_is_better_than_what_was_swapped_out() -> None:
    scheduler, device = make_engine(seqs=1, tokens=32, swap_blocks=8, swap_block_seconds=0.0, policy="priority")
    tokens = list(range(60))
    slow = add(scheduler, "slow", tokens, max_tokens=3, priority=1, seed=1)
    step(scheduler, device)
    urgent = add(scheduler, "urgent", tokens, max_tokens=2, seed=2)
    step(scheduler, device)
    assert slow.swapped is not None
    assert slow.swapped.computed == 32
    while slow.status is not Status.RUNNING:
        plan, _ = step(scheduler, device)
    assert [chunk.start for chunk in plan.chunks] == [48]
    finish(scheduler, device, [slow, urgent])
    stats = StatsReader(scheduler).read()
    assert (stats.swapped_out_blocks, stats.swapped_in_blocks, stats.recomputed_tokens) == (2, 0, 0)
    assert scheduler.memory.swap.pools[0].available == 8
