"""Who is let in when blocks are short: some may pass a request whose blocks are not there, and not for ever."""

from __future__ import annotations

import pytest
from simulation import make_engine, make_request, step

from octavo_engine.core.request import Status


@pytest.mark.parametrize("skips", [0, 1, 3])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_blocked_request_is_passed_by_so_many_others_and_no_more(skips: int, at_once: bool) -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, max_skips=skips, watermark=0.0)
    scheduler.add(hog := make_request("hog", 130, max_tokens=14))  # 9 blocks until its end
    step(scheduler, device)
    scheduler.add(head := make_request("head", 120, max_tokens=2))  # 8 blocks, and 7 are there
    small = [make_request(f"small{n}", 10, max_tokens=3) for n in range(7)]
    for request in small:
        scheduler.add(request)
        if not at_once:
            step(scheduler, device)
    while head.status is Status.WAITING:
        step(scheduler, device)
        passed = sum(request.scheduled_at is not None for request in small)
        assert (head.status, passed) == (Status.WAITING, skips) or head.status is Status.RUNNING
    assert hog.status is Status.FINISHED
    assert head.passed == skips


def test_the_one_that_is_passed_is_admitted_once_its_blocks_are_there() -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, watermark=0.0)
    scheduler.add(hog := make_request("hog", 130, max_tokens=3))
    step(scheduler, device)
    scheduler.add(head := make_request("head", 120, max_tokens=2))
    step(scheduler, device)
    assert head.status is Status.WAITING
    step(scheduler, device)
    assert hog.status is Status.FINISHED
    step(scheduler, device)
    assert head.status is Status.RUNNING


@pytest.mark.parametrize(("blocked", "looks"), [(3, True), (4, False)])
def test_a_plan_looks_past_a_few_blocked_requests_only(blocked: int, looks: bool) -> None:
    scheduler, device = make_engine(blocks=16, seqs=16, tokens=256, watermark=0.0)
    scheduler.add(make_request("hog", 130, max_tokens=30))
    step(scheduler, device)
    for number in range(blocked):
        scheduler.add(make_request(f"big{number}", 120, max_tokens=2))
    scheduler.add(small := make_request("small", 10, max_tokens=3))
    step(scheduler, device)
    assert (small.status is Status.RUNNING) == looks


def test_a_new_request_leaves_some_blocks_for_the_others_to_grow_into() -> None:
    scheduler, device = make_engine(blocks=20, seqs=16, tokens=256, watermark=0.1)
    scheduler.add(make_request("first", 100, max_tokens=90))  # 7 blocks
    step(scheduler, device)
    scheduler.add(tight := make_request("tight", 190, max_tokens=2))  # 12 of 13, and 2 are to be left
    scheduler.add(fits := make_request("fits", 170, max_tokens=2))  # 11
    step(scheduler, device)
    assert (tight.status, fits.status) == (Status.WAITING, Status.RUNNING)
