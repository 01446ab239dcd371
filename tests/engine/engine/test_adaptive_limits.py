"""The controller of --target-ttft-p90 and --target-itl-p90 against a small model of an engine under load."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from octavo_engine.engine.adaptive_limits import AdaptiveLimits


@dataclass
class Waiting:
    """A request of the model: when it came, prompt tokens left to compute, tokens left to answer."""

    arrival: float
    prompt: int
    answer: int


@dataclass
class Seen:
    """The observed figures of a step."""

    now: float
    seconds: float
    running_limit: int
    chunk_limit: int
    target_met: bool


@dataclass
class Engine:
    """Steps that take base + per_running * decoding requests + per_token * prefill tokens seconds."""

    limits: AdaptiveLimits
    base: float = 0.005
    per_running: float = 1e-4
    per_token: float = 2e-5
    now: float = 0.0
    waiting: deque[Waiting] = field(default_factory=deque)
    running: list[Waiting] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    def load(self, seconds: float, rate: float, prompt: int, answer: int, seed: int = 0) -> list[Seen]:
        """Poisson arrivals for some seconds, lengths within half and one and a half of what is said."""
        rng, first = random.Random(seed), len(self.seen)
        until = self.now + seconds
        arrival = self.now + rng.expovariate(rate)
        while self.now < until:
            while arrival <= self.now:
                sizes = (int(mean * rng.uniform(0.5, 1.5)) for mean in (prompt, answer))
                self.waiting.append(Waiting(arrival, *(max(1, size) for size in sizes)))
                arrival += rng.expovariate(rate)
            self.step(arrival)
        return self.seen[first:]

    def step(self, next_arrival: float) -> None:
        """One step, or the time until the next arrival."""
        self.limits.update(self.now)
        prefill = self._prefill(self.limits.chunk_limit)
        decoding = [request for request in self.running if request.prompt == 0]
        started = [request for request, tokens in prefill if request.prompt == tokens]
        tokens = sum(tokens for _, tokens in prefill)
        if not decoding and not tokens:
            self.now = next_arrival
            return
        seconds = self.base + self.per_running * len(decoding) + self.per_token * tokens
        self.now += seconds
        for request, computed in prefill:
            request.prompt -= computed
        for request in started:
            self.limits.on_first_token(self.now - request.arrival)
        for request in decoding:
            request.answer -= 1
        self.limits.on_token_gap(seconds, len(decoding))
        self.running = [request for request in self.running if request.answer > 0]
        state = (self.limits.running_limit, self.limits.chunk_limit, self.limits.target_met)
        self.seen.append(Seen(self.now, seconds, *state))

    def _prefill(self, budget: int) -> list[tuple[Waiting, int]]:
        planned = []
        for request in self._candidates():
            tokens = min(budget, request.prompt)
            planned.append((request, tokens))
            budget -= tokens
            if budget == 0:
                break
        return planned

    def _candidates(self) -> Iterator[Waiting]:
        yield from [request for request in self.running if request.prompt]
        while self.waiting and len(self.running) < self.limits.running_limit:
            self.running.append(self.waiting.popleft())
            yield self.running[-1]


def p90(seconds: list[float]) -> float:
    return sorted(seconds)[int(0.9 * len(seconds))]


def step_p90(seen: list[Seen]) -> float:
    return p90([step.seconds for step in seen])


def after(seen: list[Seen], seconds: float) -> list[Seen]:
    return [step for step in seen if step.now >= seen[0].now + seconds]


# Loads beyond what the model's engine can do within the target. In the first, prompts are what makes steps long, in the
# second it is the number of answers.
OVERLOADS = {"long prompts": (0.030, 60, 2000, 100), "long answers": (0.015, 20, 100, 1000)}


def test_without_targets_nothing_moves() -> None:
    engine = Engine(AdaptiveLimits(64, 2048))
    seen = engine.load(30, rate=60, prompt=2000, answer=100)
    assert {(step.running_limit, step.chunk_limit, step.target_met) for step in seen} == {(64, 2048, True)}


def test_targets_that_are_met_cost_nothing() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, ttft_p90=1.0, itl_p90=0.03))
    seen = engine.load(60, rate=10, prompt=500, answer=200)
    assert {(step.running_limit, step.chunk_limit, step.target_met) for step in seen} == {(256, 8192, True)}


@pytest.mark.parametrize("name", OVERLOADS)
def test_itl_comes_to_its_target_and_stays_there(name: str) -> None:
    target, *load = OVERLOADS[name]
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=target))
    settled = after(engine.load(120, *load), 40)
    assert step_p90(settled) <= target
    assert step_p90(settled) >= 0.8 * target, "slower than the target asks for"
    assert all(step.target_met for step in settled)


@pytest.mark.parametrize("name", OVERLOADS)
@pytest.mark.parametrize("seed", range(3))
def test_once_settled_the_limits_keep_still(name: str, seed: int) -> None:
    target, *load = OVERLOADS[name]
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=target))
    settled = after(engine.load(160, *load, seed=seed), 60)
    for limits in ([step.running_limit for step in settled], [step.chunk_limit for step in settled]):
        assert max(limits) <= 1.25 * min(limits)


def test_prefill_gives_way_before_running_requests_do() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=0.03))
    seen = engine.load(60, rate=60, prompt=2000, answer=100)
    assert min(step.chunk_limit for step in seen) < 1200
    assert min(step.running_limit for step in seen) == 256


def test_running_requests_give_way_once_prefill_is_at_its_floor() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=0.015))
    seen = engine.load(120, rate=20, prompt=100, answer=1000)
    at_floor = next(step.now for step in seen if step.chunk_limit == 16)
    lowered = next(step.now for step in seen if step.running_limit < 256)
    assert at_floor <= lowered
    assert 80 <= seen[-1].running_limit <= 105, "(0.015 - 0.005) / 1e-4 decoding requests fit into the target"


@pytest.mark.parametrize("name", OVERLOADS)
def test_limits_come_back_after_the_load(name: str) -> None:
    target, *load = OVERLOADS[name]
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=target))
    engine.load(60, *load)
    engine.waiting.clear()
    seen = engine.load(120, rate=2, prompt=200, answer=50)
    assert (seen[-1].running_limit, seen[-1].chunk_limit) == (256, 8192)


def test_limits_stop_at_their_least_and_the_message_says_that_the_itl_target_cannot_be_met() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=0.004))  # less than a step's base
    seen = engine.load(90, rate=20, prompt=100, answer=300)
    assert (seen[-1].running_limit, seen[-1].chunk_limit, seen[-1].target_met) == (1, 16, False)
    assert "--target-itl-p90 0.004 cannot be met: p90 is 0.0051 s" in engine.limits.message
    assert "1 requests running and 16 prefill tokens a step, the least there may be" in engine.limits.message


def test_it_says_that_ttft_cannot_be_met_and_later_that_it_is() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, ttft_p90=0.5))
    assert not engine.load(60, rate=60, prompt=2000, answer=200)[-1].target_met
    assert "the most there may be; more replicas or less load would help" in engine.limits.message
    engine.waiting.clear()
    assert engine.load(90, rate=2, prompt=100, answer=20)[-1].target_met
    assert engine.limits.message == ""


def test_alone_a_missed_ttft_moves_nothing() -> None:
    """Both limits are at their most, and TTFT does not show whether fewer prompt tokens a step would help."""
    seen = Engine(AdaptiveLimits(256, 8192, ttft_p90=0.5)).load(60, rate=60, prompt=2000, answer=200)
    assert {(step.running_limit, step.chunk_limit) for step in seen} == {(256, 8192)}
    assert not seen[-1].target_met


def test_of_two_targets_in_conflict_itl_is_held_and_ttft_is_reported_as_missed() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, ttft_p90=0.5, itl_p90=0.02))
    settled = after(engine.load(90, rate=30, prompt=2000, answer=200), 30)
    assert step_p90(settled) <= 1.02 * 0.02
    assert not any(step.target_met for step in settled)
    assert "--target-ttft-p90 0.5 cannot be met" in engine.limits.message
    assert "--target-itl-p90 0.02 allows no more" in engine.limits.message


def test_a_missed_ttft_makes_limits_grow_faster() -> None:
    def grown(ttft_p90: float | None) -> int:
        engine = Engine(AdaptiveLimits(256, 8192, ttft_p90=ttft_p90, itl_p90=0.02))
        engine.load(60, rate=60, prompt=2000, answer=100)
        engine.waiting.clear()
        engine.base, engine.per_token = 0.001, 1e-6  # the device is fast again
        return engine.load(6, rate=20, prompt=500, answer=50)[-1].chunk_limit

    assert grown(ttft_p90=0.001) > 1.5 * grown(ttft_p90=None)


def test_one_slow_step_moves_nothing() -> None:
    limits = AdaptiveLimits(256, 8192, itl_p90=0.03)
    for step in range(1000):
        limits.update(step * 0.02)
        limits.on_token_gap(2.0 if step == 500 else 0.02, 32)
    assert (limits.running_limit, limits.chunk_limit) == (256, 8192)


def test_a_load_that_comes_and_goes_does_not_make_the_verdict_flap() -> None:
    engine = Engine(AdaptiveLimits(64, 2048, ttft_p90=0.5))
    for _ in range(10):
        engine.load(3, rate=80, prompt=1000, answer=50)
        engine.load(3, rate=1, prompt=100, answer=10)
    verdicts = [step.target_met for step in engine.seen]
    assert sum(before != now for before, now in itertools.pairwise(verdicts)) <= 2


def test_the_same_calls_give_the_same_limits() -> None:
    first, second = (Engine(AdaptiveLimits(256, 8192, itl_p90=0.015)) for _ in range(2))
    assert first.load(40, 20, 100, 500) == second.load(40, 20, 100, 500)


@pytest.mark.parametrize(("running", "chunk"), [(1, 1), (1, 16), (2, 20), (3, 8)])
def test_small_ceilings_are_kept(running: int, chunk: int) -> None:
    engine = Engine(AdaptiveLimits(running, chunk, itl_p90=0.004))
    for step in engine.load(20, rate=20, prompt=100, answer=10):
        assert 1 <= step.running_limit <= running
        assert min(16, chunk) <= step.chunk_limit <= chunk


def feed(limits: AdaptiveLimits, start: float, gaps: list[float], count: int = 8) -> float:
    """Steps of the given seconds, one after another; the time after them."""
    for seconds in gaps:
        start += seconds
        limits.on_token_gap(seconds, count)
        limits.update(start)
    return start


def test_steps_planned_before_a_move_do_not_count_against_it() -> None:
    limits = AdaptiveLimits(256, 8192, itl_p90=0.05)
    now = feed(limits, 0.0, [0.125] * 17)  # the 17th lets it decide
    assert limits.chunk_limit == 3264
    now = feed(limits, now, [0.125] * 2)
    feed(limits, now, [0.049] * 20, count=4)
    assert limits.chunk_limit == 3264


def test_a_chunk_never_grows_past_what_itl_has_room_for() -> None:
    limits = AdaptiveLimits(256, 8192, ttft_p90=0.1, itl_p90=0.05)
    now = feed(limits, 0.0, [0.1] * 17)
    for _ in range(20):
        limits.on_first_token(1.0)
    feed(limits, now, [0.046] * 25)  # 8 % below the target, for one decision
    assert 4096 < limits.chunk_limit <= 4096 * 0.05 / 0.046


def test_what_holds_requests_back_grows_first() -> None:
    engine = Engine(AdaptiveLimits(256, 8192, itl_p90=0.015))
    held = engine.load(90, rate=20, prompt=100, answer=1000)[-1]
    assert held.chunk_limit == 16
    engine.per_running /= 2
    seen = engine.load(10, rate=20, prompt=100, answer=1000)
    moved = next(step for step in seen if step.running_limit > held.running_limit or step.chunk_limit > 16)
    assert moved.running_limit > held.running_limit
    assert moved.chunk_limit == 16


@pytest.mark.parametrize(("seconds", "met"), [(8, True), (12, False)])
def test_a_target_missed_for_a_moment_is_not_worth_saying(seconds: int, met: bool) -> None:
    limits = AdaptiveLimits(8, 256, ttft_p90=1.0)
    for tenth in range(10 * seconds):
        limits.update(tenth / 10)
        limits.on_first_token(2.0)
    assert limits.target_met is met
