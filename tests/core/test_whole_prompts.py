"""Models whose first tokens see their last ones: no prompt is split into chunks, and none waits forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from simulation import Device, add, make_scheduler, step

RULES = {"whole_prompts": True, "prefix": False, "blocks": 512}


@given(
    lengths=st.lists(st.tuples(st.integers(1, 64), st.sampled_from("abc")), min_size=1, max_size=30),
    seconds=st.sampled_from([float("inf"), 1e-6]),
)
def test_every_prompt_is_computed_in_one_step(lengths: list[tuple[int, str]], seconds: float) -> None:
    """Also of tenants beyond their share, and where a step of the wanted duration holds less than one."""
    scheduler = make_scheduler(tokens=64, seqs=4, max_step_seconds=seconds, **RULES)  # type: ignore[arg-type]
    device = Device(scheduler.memory.block_size)
    for index, (length, tenant) in enumerate(lengths):
        add(scheduler, str(index), length, max_tokens=0, tenant=tenant)
    ended = 0
    while scheduler.has_work:
        plan, outputs = step(scheduler, device)
        assert plan.chunks and all(chunk.start == 0 and chunk.samples for chunk in plan.chunks)
        assert plan.num_tokens <= 64 and not plan.decode_rows
        ended += len(outputs)
    assert ended == len(lengths)


def test_a_prompt_waits_until_it_fits_beside_the_decodes() -> None:
    """A model that generates: its step would otherwise have more tokens than its memory was planned for."""
    scheduler = make_scheduler(tokens=64, seqs=8, **RULES)  # type: ignore[arg-type]
    device = Device(scheduler.memory.block_size)
    for index, (length, answer) in enumerate(((8, 4), (9, 9), (60, 2), (64, 2))):
        add(scheduler, str(index), length, max_tokens=answer)
    ended, chunks = 0, []
    while scheduler.has_work:
        plan, outputs = step(scheduler, device)
        assert plan.num_tokens <= 64
        chunks += [chunk.num_tokens for chunk in plan.chunks]
        ended += sum(output.finish_reason is not None for output in outputs)
    assert (ended, chunks) == (4, [8, 9, 60, 64])


def test_after_a_preemption_an_answer_follows_its_prompt_token_by_token() -> None:
    """As it was computed before: an indexer's choice between equal scores depends on a step's tokens."""
    scheduler = make_scheduler(tokens=64, seqs=8, **{**RULES, "blocks": 5})  # type: ignore[arg-type]
    device = Device(scheduler.memory.block_size)
    for index in range(2):
        add(scheduler, str(index), 20, max_tokens=30)
    chunks, answers = [], 0
    while scheduler.has_work:
        plan, outputs = step(scheduler, device)
        chunks += [(chunk.start, chunk.num_tokens) for chunk in plan.chunks]
        answers += sum(len(output.token_ids) for output in outputs)
    assert scheduler.counters.preemptions == 1
    again = chunks[3:]
    assert chunks[:3] == [(0, 20)] * 3 and len(again) > 5 and answers == 60
    assert again == [(20 + index, 1) for index in range(len(again))]


def test_prompts_share_a_step_as_far_as_they_fit() -> None:
    scheduler = make_scheduler(tokens=64, seqs=8, **RULES)  # type: ignore[arg-type]
    device = Device(scheduler.memory.block_size)
    for index, length in enumerate((30, 30, 30, 4, 64)):
        add(scheduler, str(index), length, max_tokens=0)
    steps = []
    while scheduler.has_work:
        steps.append([chunk.num_tokens for chunk in step(scheduler, device)[0].chunks])
    assert steps == [[30, 30], [30, 4], [64]]
