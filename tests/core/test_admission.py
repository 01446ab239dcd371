"""Admission when blocks are short: some requests may overtake one whose blocks are not free, but not forever."""

from __future__ import annotations

import pytest
from simulation import add, make_engine, step

from octavo_engine.core.request_state import Status


@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_blocked_request_is_passed_by_so_many_others_and_no_more(skips: int, at_once: bool) -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, max_skips=skips, watermark=0.0)
    hog = add(scheduler, "hog", 130, max_tokens=14)  # 9 blocks until its end
    step(scheduler, device)
    head = add(scheduler, "head", 120, max_tokens=2)  # 8 blocks, and 7 are there
    small = []
    for n in range(7):
        small.append(add(scheduler, f"small{n}", 10, max_tokens=3))
        if not at_once:
            step(scheduler, device)
    while head.status is Status.WAITING:
        step(scheduler, device)
        passed = sum(request.scheduled_at is not None for request in small)
        assert (head.status, passed) == (Status.WAITING, skips) or head.status is Status.RUNNING
    assert hog.status is Status.FINISHED
    assert head.skipped == skips


def test_the_one_that_is_passed_is_admitted_once_its_blocks_are_there() -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, watermark=0.0)
    hog = add(scheduler, "hog", 130, max_tokens=3)
    step(scheduler, device)
    head = add(scheduler, "head", 120, max_tokens=2)
    step(scheduler, device)
    assert head.status is Status.WAITING
    step(scheduler, device)
    assert hog.status is Status.FINISHED
    step(scheduler, device)
    assert head.status is Status.RUNNING


@pytest.mark.parametrize(("blocked", "looks"), [(3, True), (4, False)])
def test_a_plan_looks_past_a_few_blocked_requests_only(blocked: int, looks: bool) -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, watermark=0.0)
    add(scheduler, "hog", 130, max_tokens=30)
    step(scheduler, device)
    for number in range(blocked):
        add(scheduler, f"big{number}", 120, max_tokens=2)
    small = add(scheduler, "small", 10, max_tokens=3)
    step(scheduler, device)
    assert (small.status is Status.RUNNING) == looks


def test_a_new_request_leaves_some_blocks_for_the_others_to_grow_into() -> None:
    scheduler, device = make_engine(blocks=20, seqs=16, tokens=256, watermark=0.1)
    add(scheduler, "first", 100, max_tokens=90)  # 7 blocks
    step(scheduler, device)
    tight = add(scheduler, "tight", 190, max_tokens=2)  # 12 of 13, and 2 are to be left
    fits = add(scheduler, "fits", 170, max_tokens=2)  # 11
    step(scheduler, device)
    assert (tight.status, fits.status) == (Status.WAITING, Status.RUNNING)


def test_requests_whose_adapter_is_not_ready_are_passed_by_without_end() -> None:
    scheduler, device = make_engine(blocks=64, seqs=16, tokens=256)
    ready: set[str] = set()
    scheduler.planner.policy.adapter_is_ready = ready.__contains__
    late = [add(scheduler, f"late{number}", 10, max_tokens=2, adapter="a") for number in range(8)]
    base = add(scheduler, "base", 10, max_tokens=2)
    plan, _ = step(scheduler, device)
    assert [new.request_id for new in plan.new_rows] == ["base"]
    assert base.status is Status.RUNNING
    ready.add("a")
    plan, _ = step(scheduler, device)
    assert [(new.request_id, new.adapter) for new in plan.new_rows] == [(each.request_id, "a") for each in late]
