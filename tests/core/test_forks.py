"""Forks share their parent's computed blocks but not later ones: copy-on-write, for every kind of KV group.

Each request has a seed of its own, so that forks have different answers: a write into a shared block would be seen.
"""

from __future__ import annotations

import pytest
from simulation import Device, add, answer_of, expected, make_engine, run, step

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.request import FinishReason
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.engine.scheduler_stats import StatsReader

FULL = [KVGroup(32)]
GROUPS = {
    "full": FULL,
    "sliding": [KVGroup(32, "sliding", 18)],
    "recurrent": [KVGroup(32, "recurrent")],
    "all": [KVGroup(32), KVGroup(32, "sliding", 18), KVGroup(32, "recurrent")],
}


def choices(scheduler: Scheduler, prompt: int, number: int = 3, max_tokens: int = 30) -> list[RequestState]:
    """The choices of one prompt, added."""
    first = add(scheduler, "c0", prompt, max_tokens=max_tokens, seed=1)
    tokens = first.token_ids
    forks = [add(scheduler, f"c{n}", tokens, max_tokens=max_tokens, seed=n + 1, fork_of="c0") for n in range(1, number)]
    return [first, *forks]


def finish(scheduler: Scheduler, device: Device, requests: list[RequestState], ahead: int = 0) -> dict[str, int]:
    """Run to the end and see that each answer is its own; the cached tokens of each."""
    sent = {request.request_id: request.num_output for request in requests}
    outputs = run(scheduler, device=device, ahead=ahead)
    for request in requests:
        assert answer_of(outputs, request.request_id) == expected(request)[sent[request.request_id] :]
    assert scheduler.memory.blocks_used == 0
    return {output.request_id: output.cached_tokens for output in outputs if output.finish_reason}


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("prefix", [True, False])
def test_three_choices_share_their_prompt_and_never_see_each_other(prefix: bool, ahead: int) -> None:
    """Twenty tokens are a full block and 4 slots of the next: that block is copied for two of the three."""
    scheduler, device = make_engine(groups=FULL, prefix=prefix)
    requests = choices(scheduler, 20)
    assert [request.status for request in requests] == [Status.WAITING, Status.FORKING, Status.FORKING]
    plan, _ = step(scheduler, device)
    assert plan.num_tokens == 20, "forks wait for the prompt, and do not compute it themselves"
    plan, _ = step(scheduler, device)
    assert len(plan.decode_rows) == 1
    assert [(chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks] == [(19, 1, True)] * 2
    assert [(op.kind, op.source) for op in plan.block_ops] == [("copy", device.rows[requests[0].row].tables[0][1])] * 2
    tables = [request.block_tables[0] for request in requests]
    assert len({table[0] for table in tables}) == 1
    assert len({table[1] for table in tables}) == 3
    assert scheduler.memory.blocks_used == 1 + 3
    assert StatsReader(scheduler).read().copied_blocks == 2
    cached = finish(scheduler, device, requests, ahead)
    assert cached == {"c0": 0, "c1": 19, "c2": 19}
    assert StatsReader(scheduler).read().copied_blocks == 2
    assert len({tuple(expected(request)) for request in requests}) == 3


@pytest.mark.parametrize("prompt", [17, 33])
def test_forks_that_begin_at_a_block_boundary_copy_nothing(prompt: int) -> None:
    """All but the last prompt token are full blocks, and that one is computed into a new block by each."""
    scheduler, device = make_engine(groups=FULL)
    requests = choices(scheduler, prompt)
    step(scheduler, device)
    plan, _ = step(scheduler, device)
    assert plan.block_ops == ()
    assert [chunk.start for chunk in plan.chunks] == [prompt - 1] * 2
    assert scheduler.memory.blocks_used == (prompt - 1) // 16 + 3
    assert finish(scheduler, device, requests) == {"c0": 0, "c1": prompt - 1, "c2": prompt - 1}
    assert StatsReader(scheduler).read().copied_blocks == 0


@pytest.mark.parametrize("kinds", GROUPS)
@pytest.mark.parametrize("prompt", [1, 2, 16, 17, 47, 48, 49])
@pytest.mark.parametrize("tokens", [8, 64])
def test_forks_in_groups_of_every_kind(kinds: str, prompt: int, tokens: int) -> None:
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32, tokens=tokens)
    requests = choices(scheduler, prompt, max_tokens=40)
    cached = finish(scheduler, device, requests)
    if kinds in ("full", "sliding") and prompt > 1:
        assert cached == {"c0": 0, "c1": prompt - 1, "c2": prompt - 1}


def test_a_recurrent_state_is_forked_at_the_parents_position() -> None:
    """The parent's state is after its whole prompt; a fork must compute the last token, for its logits.

    So it shares no state, but it finds the snapshot at the last block boundary.
    """
    scheduler, device = make_engine(groups=GROUPS["recurrent"], blocks=32)
    requests = choices(scheduler, 20)
    assert finish(scheduler, device, requests) == {"c0": 0, "c1": 16, "c2": 16}


def test_forks_of_an_aborted_parent_are_computed_by_themselves() -> None:
    scheduler, device = make_engine(groups=FULL, tokens=16)
    requests = choices(scheduler, 40)
    step(scheduler, device)
    assert scheduler.abort("c0") is not None
    cached = finish(scheduler, device, requests[1:])
    assert cached == {"c1": 16, "c2": 32}, "they find what the parent, and then the first of them, had computed"


@pytest.mark.parametrize("prefix", [True, False])
def test_forks_of_a_parent_that_has_ended_are_computed_by_themselves(prefix: bool) -> None:
    scheduler, device = make_engine(groups=FULL, prefix=prefix, seqs=1)
    parent = add(scheduler, "c0", 40, max_tokens=1)
    fork = add(scheduler, "c1", parent.token_ids, max_tokens=9, seed=2, fork_of="c0")
    cached = finish(scheduler, device, [parent, fork])
    assert cached == {"c0": 0, "c1": 32 if prefix else 0}


def test_forks_of_a_preempted_parent_wait_until_it_is_computed_again() -> None:
    scheduler, device = make_engine(groups=FULL, tokens=16, seqs=1, policy="priority", prefix=False)
    parent = add(scheduler, "c0", 40, max_tokens=9, seed=1, priority=1)
    fork = add(scheduler, "c1", parent.token_ids, max_tokens=9, seed=2, priority=1, fork_of="c0")
    step(scheduler, device)
    urgent = add(scheduler, "urgent", 40, max_tokens=2)
    step(scheduler, device)
    assert (parent.status, fork.status) == (Status.REQUEUED, Status.FORKING)
    finish(scheduler, device, [parent, fork, urgent])
    assert StatsReader(scheduler).read().preemptions >= 1


def test_a_parent_preempted_after_its_forks_began_takes_nothing_from_them() -> None:
    scheduler, device = make_engine(groups=FULL, policy="priority", seqs=3)
    requests = choices(scheduler, 20)
    for _ in range(3):
        step(scheduler, device)
    for request in requests[1:]:
        request.preemptions = 3  # so that the parent is the only candidate
    urgent = add(scheduler, "urgent", 40, max_tokens=2, priority=-1)
    step(scheduler, device)
    assert requests[0].status is Status.REQUEUED
    for request in requests[1:]:
        request.preemptions = 0
    finish(scheduler, device, [*requests, urgent])


@pytest.mark.parametrize("end", ["abort", "error"])
def test_a_fork_that_ends_leaves_the_others_blocks_alone(end: str) -> None:
    scheduler, device = make_engine(groups=FULL)
    requests = choices(scheduler, 20)
    for _ in range(4):
        step(scheduler, device)
    assert scheduler.abort("c1", FinishReason(end)) is not None
    scheduler.check_integrity()
    finish(scheduler, device, [requests[0], requests[2]])


UNRELATED = {
    "another tenant": {"tenant": "b"},
    "another salt": {"cache_salt": "b"},
    "another adapter": {"adapter": "b"},
    "an unknown parent": {"fork_of": "unknown"},
}


@pytest.mark.parametrize("difference", [*UNRELATED, "another prompt", "a longer prompt"])
def test_a_fork_that_is_none_waits_in_the_queue_and_shares_nothing(difference: str) -> None:
    scheduler, device = make_engine(groups=FULL, prefix=difference in ("another salt", "another adapter"))
    parent = add(scheduler, "c0", 40, max_tokens=20)
    tokens = list(parent.token_ids)
    if difference == "another prompt":
        tokens[3] += 1
    if difference == "a longer prompt":
        tokens += expected(parent)[:1]
    other = add(scheduler, "c1", tokens, max_tokens=20, seed=2, **{"fork_of": "c0", **UNRELATED.get(difference, {})})
    device.owners = {"c0": "one", "c1": "another"}
    assert (other.status, other.fork_of) == (Status.WAITING, None)
    assert finish(scheduler, device, [parent, other]) == {"c0": 0, "c1": 0}


@pytest.mark.parametrize("kinds", GROUPS)
def test_a_fork_may_go_on_from_a_running_requests_answer(kinds: str) -> None:
    """Beam search forks so: prompt and answer so far are shared."""
    scheduler, device = make_engine(groups=GROUPS[kinds], blocks=32, prefix=False)
    parent = add(scheduler, "c0", 20, max_tokens=30, seed=1)
    for _ in range(6):
        step(scheduler, device)
    beams = [add(scheduler, f"b{n}", parent.token_ids, max_tokens=20, seed=n, fork_of="c0") for n in (2, 3)]
    known = len(parent.token_ids)
    assert known >= 25
    cached = finish(scheduler, device, [parent, *beams])
    assert [cached[beam.request_id] for beam in beams] == [known - 1] * 2


def test_a_fork_of_a_fork_shares_too() -> None:
    scheduler, device = make_engine(groups=FULL, prefix=False)
    first, second = choices(scheduler, 40, number=2)
    third = add(scheduler, "c2", first.token_ids, max_tokens=30, seed=3, fork_of="c1")
    assert finish(scheduler, device, [first, second, third]) == {"c0": 0, "c1": 39, "c2": 39}
