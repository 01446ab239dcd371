"""Draft tokens in plans and results: which steps wait for others, what is reported, and which blocks drafts take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from simulation import Device, add, answer_of, expected_answer, make_engine, make_scheduler, news, run, step

from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import RequestOutput

PROMPT = list(range(100, 110))
ANSWER = expected_answer(PROMPT, 60)


class PretendedProposer:
    """Knows how one prompt goes on, and says so of requests by the name of `right`; to `wrong` it says nonsense."""

    def __init__(self, count: int) -> None:
        self.count = count

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        done = len(token_ids) - len(PROMPT)
        if request_id.startswith("right"):
            return ANSWER[done : done + self.count]
        return [-1] * self.count if request_id.startswith("wrong") else []

    def remove(self, request_id: str) -> None:
        """Answers are known before."""


def speculating(count: int = 4, **rules: object) -> tuple[Scheduler, Device]:
    scheduler, device = make_engine(**rules)
    scheduler.proposer = PretendedProposer(count)
    return scheduler, device


def test_right_drafts_are_all_accepted_and_one_more_token_comes_with_them() -> None:
    scheduler, device = speculating()
    add(scheduler, "right", PROMPT, max_tokens=12)
    step(scheduler, device)
    plan, outputs = step(scheduler, device)
    assert plan.drafts == {0: tuple(ANSWER[1:5])}
    assert plan.num_tokens == plan.num_decode_tokens == 5
    assert outputs == [RequestOutput("right", tuple(ANSWER[1:6]), queue_seconds=0.0)]
    assert answer_of(run(scheduler, device=device), "right") == ANSWER[6:12]


def test_a_wrong_draft_costs_nothing_but_its_tokens() -> None:
    scheduler, device = speculating(blocks=4, block_size=4)
    state = add(scheduler, "wrong", PROMPT, max_tokens=6)
    assert answer_of(run(scheduler, device=device), "wrong") == ANSWER[:6], "in blocks for 16 tokens"
    assert state.preemptions == 0


def test_a_request_with_drafts_waits_for_its_result_and_others_do_not() -> None:
    scheduler, device = speculating()
    add(scheduler, "right", PROMPT, max_tokens=30)
    add(scheduler, "other", 5, max_tokens=30)
    step(scheduler, device)
    rows = []
    launched = []
    for _ in range(4):
        plan = scheduler.schedule(0.0)
        assert plan is not None
        rows.append(len(plan.decode_rows))
        launched.append((plan, device.execute(plan)))
    assert rows == [2, 1, 1, 1], "the one with drafts is planned once"
    for plan, result in launched:
        news(scheduler.update(plan, result, 0.0))
    plan = scheduler.schedule(0.0)
    assert plan is not None
    assert len(plan.decode_rows) == 2


def test_an_answer_stops_within_its_drafts() -> None:
    scheduler, device = speculating()
    add(scheduler, "right", PROMPT, max_tokens=30, stop=(ANSWER[3],))
    outputs = run(scheduler, device=device)
    assert answer_of(outputs, "right") == ANSWER[: ANSWER.index(ANSWER[3]) + 1]
    assert (outputs[-1].finish_reason, outputs[-1].stop_token) == ("stop", ANSWER[3])


@pytest.mark.parametrize("most", range(1, 9))
def test_drafts_never_reach_beyond_the_longest_answer(most: int) -> None:
    scheduler, device = speculating()
    add(scheduler, "right", PROMPT, max_tokens=most)
    outputs = run(scheduler, device=device)
    assert answer_of(outputs, "right") == ANSWER[:most]
    assert outputs[-1].finish_reason == "length"


def test_drafts_take_half_of_what_decodes_leave_and_prompts_the_rest() -> None:
    scheduler, device = speculating(count=20, tokens=21, seqs=3)
    add(scheduler, "right", PROMPT, max_tokens=40)
    step(scheduler, device)
    add(scheduler, "prompt", 40, max_tokens=2)
    plan, _ = step(scheduler, device)
    assert len(plan.drafts[0]) == 10
    assert [chunk.num_tokens for chunk in plan.chunks] == [10]


def test_no_request_is_preempted_for_drafts() -> None:
    scheduler, device = speculating(blocks=6, block_size=4, prefix=False, watermark=0.0)
    add(scheduler, "right", PROMPT, max_tokens=6)
    other = add(scheduler, "other", 9, max_tokens=3)
    outputs = run(scheduler, device=device)
    assert answer_of(outputs, "right") == ANSWER[:6]
    assert other.preemptions == 0


def test_layers_with_a_recurrent_state_take_no_drafts_back() -> None:
    memory = KVMemory([KVGroup(8, "recurrent")], 16, prefix_caching=False)
    settings = SchedulerSettings(max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64)
    with pytest.raises(ValueError, match="recurrent"):
        Scheduler(settings, memory, proposer=PretendedProposer(2))
    assert make_scheduler().proposer is None
