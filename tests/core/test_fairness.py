"""The order of requests, and each tenant's share of the engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from simulation import Device, add, answer_of, expected, make_engine, make_state, run, run_steps, step

from octavo_engine.core.fairness import LEFTOVER, QUANTUM, Accounts
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.waiting_queue import WaitingQueue
from octavo_engine.engine.scheduler_stats import StatsReader

# The queue by itself.


def queue(**rules: object) -> tuple[WaitingQueue, Accounts]:
    settings = SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=999, **rules)  # type: ignore[arg-type]
    accounts = Accounts()
    return WaitingQueue(settings, accounts), accounts


def wait(waiting: WaitingQueue, accounts: Accounts, request: RequestState, weight: float = 1.0) -> None:
    accounts.open(request.tenant, weight)
    waiting.add(request)


def take(waiting: WaitingQueue, now: float = 0.0) -> RequestState:
    request = waiting.next(waiting.order(now), lambda _: False)
    assert request is not None
    waiting.take(request)
    return request


@pytest.mark.parametrize(("small", "large"), [(100, 100), (10, 700), (700, 10), (1, 2_000)])
def test_tenants_are_served_by_their_weights_in_tokens_within_a_quantum(small: int, large: int) -> None:
    """The bound of fair queueing: normalised services differ by a quantum and the largest request at most."""
    waiting, accounts = queue()
    for number in range(2_000):
        wait(waiting, accounts, make_state(f"a{number}", [1] * small, tenant="a"), 1.0)
        wait(waiting, accounts, make_state(f"b{number}", [1] * large, tenant="b"), 3.0)
    served: Counter[str] = Counter()
    for _ in range(1_500):
        request = take(waiting)
        served[request.tenant] += request.prompt_len
        assert abs(served["a"] / 1.0 - served["b"] / 3.0) <= QUANTUM + max(small, large)
    assert min(served.values()) > QUANTUM


def test_a_tenant_that_waits_for_nothing_saves_nothing_up() -> None:
    """Ten small requests, each alone in its queue, give no right to anything once the burst comes."""
    waiting, accounts = queue()
    for number in range(500):
        wait(waiting, accounts, make_state(f"a{number}", [1] * 100, tenant="a"))
    for number in range(10):
        wait(waiting, accounts, make_state(f"b{number}", [1], tenant="b"))
        while take(waiting).tenant != "b":
            pass
        assert accounts["b"].served >= accounts["a"].served - 100 - QUANTUM
    for number in range(10, 100):
        wait(waiting, accounts, make_state(f"b{number}", [1] * 100, tenant="b"))
    served: Counter[str] = Counter()
    for _ in range(60):
        served[take(waiting).tenant] += 100
        assert abs(served["a"] - served["b"]) <= QUANTUM + 100


def test_answers_are_paid_for_when_they_end() -> None:
    waiting, accounts = queue()
    for number in range(200):
        for tenant in "ab":
            wait(waiting, accounts, make_state(f"{tenant}{number}", [1] * 10, tenant=tenant))
    tokens: Counter[str] = Counter()
    for _ in range(200):
        request = take(waiting)
        answer = 90 if request.tenant == "a" else 10
        tokens[request.tenant] += 10 + answer
        accounts.generated(request.tenant, answer)
        assert abs(tokens["a"] - tokens["b"]) <= QUANTUM + 100
    assert min(tokens.values()) > 1_000


def test_what_a_tenant_owes_is_paid_before_its_next_turn() -> None:
    waiting, accounts = queue()
    for number in range(200):
        for tenant in "ab":
            wait(waiting, accounts, make_state(f"{tenant}{number}", [1] * 100, tenant=tenant))
    accounts.generated("a", 5_000)
    first = [take(waiting).tenant for _ in range(70)]
    assert abs(first.index("a") - 50) <= (QUANTUM + 100) / 100


def test_a_tenant_with_one_request_at_a_time_is_ahead_by_a_quantum_and_no_more() -> None:
    """One user among twenty tenants that always let more wait."""
    waiting, accounts = queue()
    for number in range(100):
        for tenant in range(20):
            wait(waiting, accounts, make_state(f"t{tenant}-{number}", [1] * 64, tenant=f"t{tenant}"))
    served: Counter[str] = Counter()
    asked = 0
    for _ in range(1_500):
        if waiting.next(waiting.order(0.0), lambda state: state.tenant != "user") is None:
            asked += 1
            request = make_state(f"user{asked}", [1] * 64, tenant="user")
            request.alone = accounts.open("user", 1.0)
            waiting.add(request)
        request = take(waiting)
        served[request.tenant] += 64
        if request.tenant == "user":
            accounts.close("user")
        assert served["user"] - min(served[f"t{tenant}"] for tenant in range(20)) <= QUANTUM + 64
        assert request.tenant == "user" or served["user"] >= min(QUANTUM, 64 * asked) - 64, "it need not wait so far"
    assert served["user"] > 64 * 70


@pytest.mark.parametrize("answer", [0, 180])
def test_no_tenant_starves_beside_ever_new_ones(answer: int) -> None:
    """Ten new tenants a second ask for 20 tokens: those of ten seconds and the long prompt have equal shares."""
    waiting, accounts = queue()
    wait(waiting, accounts, make_state("long", [1] * 9_000, tenant="long"))
    before = 0
    while True:
        request = make_state(f"new{before}", [1] * 20, tenant=f"new{before}")
        request.alone = accounts.open(request.tenant, 1.0)
        waiting.add(request)
        if take(waiting).tenant == "long":
            break
        accounts.generated(request.tenant, answer)
        accounts.close(request.tenant)
        accounts.decay(before / 10)
        before += 1
    assert before <= 2 * QUANTUM * 100 / (20 + answer)


def test_a_step_looks_at_each_waiting_tenant_a_few_times_however_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no place is free, none of them can begin. To look at all of them for each took 4 s with 1,000 tenants."""
    scheduler, device = make_engine(blocks=512, tokens=256, seqs=8)
    for number in range(600):
        add(scheduler, f"r{number}", 5, max_tokens=90, tenant=f"key{number % 300}")
    run_steps(scheduler, device, 5)
    assert len(scheduler.running) == 8
    looks = Counter[str]()
    place = Accounts.place

    def counted(accounts: Accounts, request: RequestState, tokens: int) -> float:
        looks[request.tenant] += 1
        return place(accounts, request, tokens)

    monkeypatch.setattr(Accounts, "place", counted)
    step(scheduler, device, 0.5)
    assert len(looks) >= 290
    assert max(looks.values()) <= 2


def test_inside_a_tenant_it_is_first_come_first_served_but_for_what_ran_before() -> None:
    waiting, accounts = queue()
    for number in range(3):
        wait(waiting, accounts, make_state(f"r{number}", 10))
    accounts.open("", 1.0)
    waiting.add(make_state("preempted", 10), first=True)
    assert [take(waiting).request_id for _ in range(4)] == ["preempted", "r0", "r1", "r2"]


def test_priorities_count_under_the_policy_priority_only() -> None:
    for policy, order in (("fcfs", "abc"), ("priority", "bca")):
        waiting, accounts = queue(policy=policy)
        for number, (name, priority) in enumerate((("a", 2), ("b", -1), ("c", 0))):
            wait(waiting, accounts, make_state(name, 10, priority=priority, arrival=float(number)))
        assert "".join(take(waiting, now=3.0).request_id for _ in range(3)) == order


def test_a_lane_moves_up_one_level_for_every_ageing_time_its_oldest_has_waited() -> None:
    waiting, accounts = queue(policy="priority", ageing_seconds=10.0)
    wait(waiting, accounts, make_state("low", 10, priority=3, arrival=0.0))
    wait(waiting, accounts, make_state("high", 10, priority=0, arrival=25.0))
    for now, first in ((25.0, "high"), (29.9, "high"), (30.0, "low"), (35.0, "high"), (40.0, "low")):
        request = waiting.next(waiting.order(now), lambda _: False)
        assert request is not None
        assert request.request_id == first, now


# In the scheduler.


def finish(scheduler: Scheduler, device: Device, requests: list[RequestState]) -> list[str]:
    """Run to the end; the requests in the order in which they ended."""
    before = {request.request_id: request.num_output for request in requests}
    outputs = run(scheduler, device=device)
    for request in requests:
        assert answer_of(outputs, request.request_id) == expected(request)[before[request.request_id] :]
    return [output.request_id for output in outputs if output.finish_reason]


def test_two_keys_with_equal_demand_get_tokens_by_their_weights() -> None:
    """1 : 3, prompts and answers counted, while both have requests waiting; what runs is not paid for yet."""
    scheduler, device = make_engine(blocks=64, seqs=8, tokens=128)
    requests = [
        add(scheduler, f"{tenant}{number}", 30, max_tokens=30, tenant=tenant, weight={"a": 1.0, "b": 3.0}[tenant])
        for number in range(150)
        for tenant in "ab"
    ]
    tokens: Counter[str] = Counter()
    for number in range(1_000):
        step(scheduler, device, number * 0.01)
        waiting = Counter(request.tenant for request in requests if request.status is Status.WAITING)
        if len(waiting) < 2:
            break
        for tenant in "ab":
            tokens[tenant] = sum(request.computed for request in requests if request.tenant == tenant) + sum(
                59 for request in requests if request.tenant == tenant and request.status is Status.FINISHED
            )
        assert abs(tokens["a"] - tokens["b"] / 3.0) <= QUANTUM + 8 * 60
    assert tokens["b"] > 5_000
    assert 2.5 < tokens["b"] / tokens["a"] < 3.5


def test_a_key_with_long_answers_pays_for_them() -> None:
    """Same prompts, answers of 120 and of 10 tokens: about as many tokens for both, so far more answers for b."""
    scheduler, device = make_engine(blocks=128, seqs=4, tokens=128)
    requests = [
        add(scheduler, f"{tenant}{number}", 10, max_tokens={"a": 120, "b": 10}[tenant], tenant=tenant)
        for number in range(250)
        for tenant in "ab"
    ]
    for number in range(700):
        step(scheduler, device, number * 0.01)
    ended = Counter(request.tenant for request in requests if request.status is Status.FINISHED)
    waiting = Counter(request.tenant for request in requests if request.status is Status.WAITING)
    assert min(waiting.values()) > 0
    assert abs(ended["a"] * 130 - ended["b"] * 20) <= QUANTUM + 4 * 130
    assert ended["b"] > 3 * ended["a"] > 0


def flooded(light_every: int, prompt: int = 40) -> list[tuple[bool, int, int]]:
    """A flood of long prompts beside a key with short ones: (flood is heavy, its prompt tokens, the other's) a step."""
    scheduler, device = make_engine(blocks=512, seqs=8, tokens=512, watermark=0.0)
    add(scheduler, "l", 4, max_tokens=200, tenant="light")
    for number in range(6):
        add(scheduler, f"f{number}", 1_000, max_tokens=4, tenant="flood")
    steps = []
    for number in range(60):
        if light_every and number % light_every == light_every - 1:
            add(scheduler, f"l{number}", prompt, max_tokens=2, tenant="light")
        heavy = scheduler._policy.accounts.heavy("flood")
        tenants = {request.row: request.tenant for request in scheduler.running}
        plan = scheduler.schedule(number * 0.01)
        if plan is None:
            break
        tenants.update({new.row: scheduler._requests[new.request_id].tenant for new in plan.new_rows})
        tokens: Counter[str] = Counter()
        for chunk in plan.chunks:
            tokens[tenants[chunk.row]] += chunk.num_tokens
        result = replace(device.execute(plan), seconds=0.010 + 0.0002 * tokens.total())
        scheduler.update(plan, result, number * 0.01)
        ends = any(chunk.samples and tenants[chunk.row] == "flood" for chunk in plan.chunks)  # with what was left of it
        going_on = any(r.tenant == "flood" and r.computed < 1_000 for r in scheduler._requests.values())
        if going_on and not ends:
            steps.append((heavy, tokens["flood"], tokens["light"]))
    return steps


def test_a_key_beyond_its_share_brings_no_step_above_its_cap_and_moves_in_every_step() -> None:
    """It gets tokens for the 10 ms of an empty step, beside others' prompts mostly 8, and never fewer than 8."""
    steps = flooded(light_every=3)
    alone = [flood for heavy, flood, light in steps if heavy and not light]
    beside = [flood for heavy, flood, light in steps if heavy and light]
    assert len(alone) > 10
    assert len(beside) > 5
    assert 40 <= max(alone) <= 60, "50 take 10 ms"
    assert max(beside) <= 60
    assert Counter(beside).most_common(1)[0][0] == LEFTOVER == 8
    assert min(alone + beside) >= LEFTOVER


def test_a_key_beyond_its_share_moves_even_beside_others_long_prompts() -> None:
    steps = flooded(light_every=20, prompt=600)
    beside = [flood for heavy, flood, light in steps if heavy and light > 100]
    assert len(beside) > 2
    assert min(beside) >= LEFTOVER


def test_a_flood_is_bounded_from_its_first_step_while_others_are_here() -> None:
    steps = flooded(light_every=0)
    assert steps[0][0] is False
    assert steps[0][1] <= 512
    assert any(heavy for heavy, *_ in steps), "after that it is heavy"


def test_on_a_slow_device_a_newcomer_does_not_wait_for_anothers_long_prompt() -> None:
    """Steps are small there, and a key that computes few tokens a second is never heavy."""
    scheduler, device = make_engine(blocks=256, tokens=2048, max_step_seconds=2.0)
    add(scheduler, "long", 2_000, max_tokens=2, tenant="a")
    now = 0.0
    for number in range(12):
        if number == 6:
            add(scheduler, "short", 4, max_tokens=2, tenant="b", arrival=now)
        plan = scheduler.schedule(now)
        assert plan is not None
        result = device.execute(plan)
        now += (seconds := 0.06 * plan.num_tokens)
        scheduler.update(plan, replace(result, seconds=seconds), now)
    assert not scheduler._policy.accounts.heavy("a")
    assert scheduler._requests["long"].computed < 1_000
    assert "short" not in scheduler._requests, "it was answered meanwhile"


def test_a_newcomer_waits_for_none_of_the_long_prompts_of_many_keys() -> None:
    """Keys that have used no more than their share are not heavy, and the prompts that they have begun fill a step."""
    scheduler, device = make_engine(blocks=4096, tokens=256, seqs=64)
    for number in range(9):
        add(scheduler, f"long{number}", 3_000, max_tokens=2, tenant=f"key{number}")
    run_steps(scheduler, device, 20)
    late = []
    for number in range(20, 60):
        short = add(scheduler, f"short{number}", 4, max_tokens=1, tenant=f"new{number}", arrival=number * 0.1)
        step(scheduler, device, number * 0.1)
        late += [number] * (short.status is Status.WAITING)
    assert not late


@pytest.mark.parametrize(("prompt", "answer"), [(20, 40), (900, 3), (20, 400)])
def test_a_newcomer_begins_at_once_beside_many_keys_that_all_wait(prompt: int, answer: int) -> None:
    """Each of eighty keys has two requests, so that no key is heavy and a turn among all of them takes very long."""
    scheduler, device = make_engine(blocks=4096, tokens=256, seqs=32, model_len=2048)
    for number in range(160):
        add(scheduler, f"flood{number}", prompt, max_tokens=answer, tenant=f"key{number % 80}")
    run_steps(scheduler, device, 20)
    news = add(scheduler, "news", 10, max_tokens=2, tenant="newcomer", arrival=2.0)
    steps = 20
    while not news.num_output:
        step(scheduler, device, steps * 0.1)
        steps += 1
    assert steps <= 22


def test_places_are_kept_for_keys_with_one_request_and_used_by_them() -> None:
    scheduler, device = make_engine(blocks=4096, tokens=256, seqs=64)
    for number in range(200):
        add(scheduler, f"flood{number}", 5, max_tokens=90, tenant=f"key{number % 20}")
    run_steps(scheduler, device, 40)
    assert len(scheduler.running) == 60
    assert StatsReader(scheduler).read().kept_slots == 4
    for number in range(6):
        add(scheduler, f"user{number}", 5, max_tokens=90, tenant=f"user{number}", arrival=4.0)
    step(scheduler, device, 4.0)
    assert len(scheduler.running) == 64


def test_two_keys_use_all_places_and_yield_one_to_a_user() -> None:
    """Of few keys each has many places, so that one can be taken back: none is left empty for a user who may come."""
    scheduler, device = make_engine(blocks=4096, tokens=256, seqs=64)
    for number in range(200):
        add(scheduler, f"flood{number}", 5, max_tokens=90, tenant=f"key{number % 2}")
    run_steps(scheduler, device, 40)
    assert len(scheduler.running) == 64
    user = add(scheduler, "user", 5, max_tokens=9, tenant="user", arrival=4.0)
    step(scheduler, device, 4.0)
    step(scheduler, device, 4.1)
    assert user.status is Status.RUNNING


def test_one_key_may_run_as_many_requests_as_there_is_room_for() -> None:
    scheduler, device = make_engine(blocks=4096, tokens=256, seqs=64)
    for number in range(80):
        add(scheduler, f"r{number}", 4, max_tokens=50, tenant="only")
    run_steps(scheduler, device, 3)
    assert len(scheduler.running) == 64


def test_long_prompts_do_not_all_begin_when_they_fill_each_step() -> None:
    """They would share the steps, so that each took as long as all together. One that others have passed begins."""
    scheduler, device = make_engine(blocks=4096, tokens=128, seqs=16, model_len=4096)
    prompts = [add(scheduler, f"long{number}", 2_000, max_tokens=2, tenant=f"key{number}") for number in range(12)]
    run_steps(scheduler, device, 8)
    assert len(scheduler.running.prefilling) == 4
    passed = next(state for state in prompts if state.status is Status.WAITING)
    passed.skipped = scheduler.settings.max_skips
    step(scheduler, device, 0.9)
    assert len(scheduler.running.prefilling) == 5
    assert passed in scheduler.running.prefilling


def test_a_key_that_is_alone_is_never_heavy() -> None:
    scheduler, device = make_engine(blocks=512, tokens=256)
    for number in range(4):
        add(scheduler, f"f{number}", 1_000, max_tokens=4, tenant="flood")
    for number in range(15):
        plan, _ = step(scheduler, device, number * 0.01)
        assert plan.num_tokens == 256


def held(scheduler: Scheduler) -> Counter[str]:
    return Counter(request.tenant for request in scheduler.running)


def test_a_key_beyond_its_share_of_seats_yields_and_they_are_not_taken_back() -> None:
    scheduler, device = make_engine(blocks=128, seqs=4)
    ours = [add(scheduler, f"a{n}", 10, max_tokens=60, tenant="a", arrival=n) for n in range(6)]
    step(scheduler, device)
    assert held(scheduler) == {"a": 4}
    theirs = [add(scheduler, f"b{n}", 10, max_tokens=60, tenant="b", arrival=9 + n) for n in range(6)]
    run_steps(scheduler, device, 40, seconds=0)
    assert held(scheduler) == {"a": 2, "b": 2}
    assert StatsReader(scheduler).read().preemptions == 2, "one for each seat of b's share, and no more"
    finish(scheduler, device, ours + theirs)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_newcomer_gets_a_seat_however_many_others_wait_for_one(policy: str) -> None:
    """Also before the key that has all seats has used so much that it counts as heavy."""
    scheduler, device = make_engine(blocks=128, seqs=4, policy=policy)
    ours = [add(scheduler, f"a{n}", 10, max_tokens=60, tenant="a", arrival=n) for n in range(20)]
    step(scheduler, device)
    assert held(scheduler) == {"a": 4}
    other = add(scheduler, "b", 10, max_tokens=60, tenant="b", arrival=21)
    run_steps(scheduler, device, 2, seconds=0)
    assert other.status is Status.RUNNING
    assert not scheduler.planner.policy.accounts.heavy("a")
    finish(scheduler, device, [*ours, other])


def test_a_key_beyond_its_share_of_memory_yields_too() -> None:
    scheduler, device = make_engine(blocks=8, seqs=8, tokens=128, watermark=0.0)
    ours = [add(scheduler, f"a{n}", 30, max_tokens=10, tenant="a", arrival=n) for n in range(4)]
    step(scheduler, device)
    step(scheduler, device)
    assert held(scheduler)["a"] >= 3
    before = scheduler.counters.preemptions
    other = add(scheduler, "b", 40, max_tokens=10, tenant="b", arrival=9.0)
    run_steps(scheduler, device, 3, seconds=0)
    assert other.status is Status.RUNNING
    assert scheduler.counters.preemptions > before
    finish(scheduler, device, [*ours, other])
    assert all(request.preemptions <= 3 for request in ours)


def test_a_key_within_its_share_does_not_yield() -> None:
    """Three keys, a third each; b already has more than its third."""
    scheduler, device = make_engine(blocks=128, seqs=3)
    for number in range(3):
        add(scheduler, f"a{number}", 10, max_tokens=50, tenant="abc"[number])
    step(scheduler, device)
    more = add(scheduler, "more", 10, max_tokens=50, tenant="b")
    run_steps(scheduler, device, 10, seconds=0)
    assert more.status is Status.WAITING
    assert StatsReader(scheduler).read().preemptions == 0


@pytest.mark.parametrize(("policy", "displaces"), [("priority", True), ("fcfs", False)])
def test_a_more_important_request_takes_a_seat_under_policy_priority_only(policy: str, displaces: bool) -> None:
    scheduler, device = make_engine(seqs=2, policy=policy)
    low = [add(scheduler, f"low{n}", 10, max_tokens=30, priority=5 - n) for n in range(2)]
    step(scheduler, device)
    urgent = add(scheduler, "urgent", 10, max_tokens=5, priority=-1)
    step(scheduler, device)
    assert (urgent.status is Status.RUNNING) == displaces
    assert [request.preemptions for request in low] == [int(displaces), 0], "the least important one gives way"
    ends = finish(scheduler, device, [*low, urgent])
    assert ends[0] == ("urgent" if displaces else "low0")


def test_equals_do_not_displace_each_other() -> None:
    scheduler, device = make_engine(seqs=1, policy="priority")
    first = add(scheduler, "first", 10, max_tokens=30, arrival=5.0)
    step(scheduler, device)
    second = add(scheduler, "second", 10, max_tokens=5, arrival=0.0)
    assert finish(scheduler, device, [first, second]) == ["first", "second"]
    assert StatsReader(scheduler).read().preemptions == 0


def test_no_request_is_overtaken_by_one_that_came_more_than_its_ageing_later() -> None:
    """Three levels less important, ten seconds a level: what arrives after 30 s comes after it, and not before."""
    scheduler, device = make_engine(seqs=1, policy="priority", ageing_seconds=10.0, max_preemptions=0)
    add(scheduler, "first", 5, max_tokens=3, arrival=0.0)
    low = add(scheduler, "low", 5, max_tokens=3, priority=3, arrival=0.0)
    stream = []
    for second in range(120):
        if second % 2 == 0:  # each takes three steps: there is always one waiting
            stream.append(add(scheduler, f"high{second}", 5, max_tokens=3, arrival=float(second)))
        step(scheduler, device, float(second))
    assert low.scheduled_at is not None
    before = [r.arrival for r in stream if r.scheduled_at is not None and r.scheduled_at < low.scheduled_at]
    assert len(before) > 5, "until then it is overtaken"
    assert max(before) <= 30.0
    after = [r.arrival for r in stream if r.scheduled_at is None or r.scheduled_at > low.scheduled_at]
    assert min(after) <= 34.0, "but not much longer than that"


@pytest.mark.parametrize("tokens", [2, 8, 16, 64])
def test_a_more_important_prompt_does_not_wait_for_one_that_has_begun(tokens: int) -> None:
    """However small the budget: it is admitted in the next step, and the other one goes on beside it."""
    scheduler, device = make_engine(blocks=64, seqs=2, tokens=tokens, policy="priority")
    long = add(scheduler, "long", 500, max_tokens=2, priority=1)
    step(scheduler, device)
    urgent = add(scheduler, "urgent", 100, max_tokens=2)
    for _ in range(2):
        before = long.computed, urgent.computed
        step(scheduler, device)
        assert urgent.computed > before[1]
        assert long.computed > before[0]
    finish(scheduler, device, [long, urgent])


def test_a_prompt_goes_on_ageing_once_it_has_begun() -> None:
    """Prompts of priority 0 take the whole budget of every step; a long one of priority 1 is admitted by its age."""
    scheduler, device = make_engine(blocks=256, seqs=16, tokens=64, policy="priority", ageing_seconds=3.0)
    long = add(scheduler, "long", 1_200, max_tokens=2, priority=1)
    admitted = None
    for number in range(100):
        now = number * 0.1
        add(scheduler, f"short{number}", 64, max_tokens=1, arrival=now)
        step(scheduler, device, now)
        if admitted is None and long.scheduled_at is not None:
            admitted = number
        if long.num_output:
            break
    assert admitted is not None
    assert 20 < admitted < 40, "until its age makes up for its priority it waits"
    assert number - admitted < 40, "from then on its chunks count as much as those of newcomers"


def test_a_tenant_that_has_left_makes_no_other_heavy() -> None:
    """Beside a key that has gone, a lone busy one is not held back for longer than ten seconds."""
    accounts = Accounts()
    accounts.open("busy", 1.0)
    accounts.open("gone", 1.0)
    accounts.computed("gone", 3_000)
    accounts.close("gone")
    heavy = []
    for second in range(1, 40):
        accounts.computed("busy", 40_000)
        accounts.decay(float(second))
        heavy.append(accounts.heavy("busy"))
    assert heavy[2]
    assert not any(heavy[12:])


def test_use_that_has_decayed_makes_no_tenant_heavy() -> None:
    """Both are here, neither uses anything: what one used long ago does not hold it back forever."""
    accounts = Accounts()
    for tenant in "ab":
        accounts.open(tenant, 1.0)
    accounts.computed("a", 500_000)
    accounts.decay(1.0)
    assert accounts.heavy("a")
    for second in range(2, 62):
        accounts.decay(float(second))
    assert not accounts.heavy("a")


def test_answers_are_charged_while_they_grow() -> None:
    scheduler, device = make_engine(blocks=64, seqs=4, tokens=64)
    add(scheduler, "long", 4, max_tokens=500, tenant="a")
    run_steps(scheduler, device, 60)
    assert scheduler._policy.accounts["a"].served > 40


def test_a_short_prompt_waits_for_no_more_than_its_own_chunks_beside_long_ones_of_several_keys() -> None:
    """Two of eight keys with long prompts took each step of a slow device, as none of them was busy: it waited 40 s."""
    scheduler, device = make_engine(blocks=256, seqs=8, tokens=64)
    for tenant in "abc":
        add(scheduler, tenant, 900, tenant=tenant)
    run_steps(scheduler, device, 3, seconds=1)
    short = add(scheduler, "short", 20, tenant="other", arrival=3.0)
    for number in range(3, 6):
        step(scheduler, device, float(number))
    assert short.num_output
