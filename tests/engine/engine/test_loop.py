"""The loop that plans one step ahead: its tokens are the same, and requests that end in flight change no other."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from octavo_engine import request_checks
from octavo_engine.config import EngineConfig
from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request import Request
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import StepOutputs, StepPlan, StepResult
from octavo_engine.engine import process, scheduler_stats, supported_requests
from octavo_engine.engine.adaptive_limits import AdaptiveLimits
from octavo_engine.engine.info import EngineInfo, ModelInfo
from octavo_engine.engine.loop import EngineLoop
from octavo_engine.engine.messages import Shutdown, to_add
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.structured.mask_provider import MaskRow, RowMasks

GREEDY = SamplingParams(max_tokens=20, temperature=0.0)
INFO = EngineInfo(
    max_model_len=500,
    vocab_size=64,
    eos_token_ids=(),
    block_size=16,
    num_kv_blocks=64,
    max_num_seqs=4,
    dtype="none",
    device="recorded",
    attention_backend="none",
    load_seconds=0.0,
)


class Recorder:
    """An executor that computes nothing: each token is its place in the sequence. It notes what was asked when."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.step_seconds = 0.0
        self.fail_at: int | None = None
        self._plans: deque[StepPlan] = deque()

    def forward(self, plan: StepPlan) -> None:
        self.events.append(f"forward {plan.step}")
        self._plans.append(plan)

    def sample(self, masks: Masks = NO_MASKS) -> None:
        assert not masks

    idle = False

    def wait(self, seconds: float) -> None:
        self.events.append(f"wait {seconds:g}")

    def result(self) -> StepResult:
        plan = self._plans.popleft()
        self.events.append(f"result {plan.step}")
        if plan.step == self.fail_at:
            raise RuntimeError("the device is gone")
        ends = [start + 1 for start in plan.decode_starts]
        ends += [chunk.start + chunk.num_tokens for chunk in plan.chunks if chunk.samples]
        return StepResult(plan.step, [end % 64 for end in ends], seconds=self.step_seconds)

    def close(self) -> None:
        self._plans.clear()


def recorded(depth: int = 2) -> tuple[EngineLoop, Recorder]:
    memory = KVMemory([KVGroup(64)], 16, prefix_caching=True)
    settings = SchedulerSettings(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=500)
    recorder = Recorder()
    return EngineLoop(Scheduler(settings, memory), recorder, INFO, depth=depth), recorder


def ask(loop: EngineLoop, name: str, prompt: Sequence[int], sampling: SamplingParams, **kwargs: Any) -> None:
    loop.add(Request(request_id=name, prompt_token_ids=tuple(prompt), sampling=sampling, **kwargs))


def drain(loop: EngineLoop) -> dict[str, list[int]]:
    """Everything said until nothing is left to do."""
    said: dict[str, list[int]] = {}
    for _ in range(10_000):
        if not loop.has_work:
            loop.check_integrity()
            return said
        for output in loop.step().each():
            said.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError("still working")


def test_a_step_is_submitted_before_the_result_of_the_one_in_front_is_awaited() -> None:
    loop, recorder = recorded()
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=4))
    assert drain(loop) == {"a": [10, 11, 12, 13]}
    assert recorder.events == [
        "forward 1", "forward 2", "result 1", "forward 3", "result 2", "forward 4", "result 3", "result 4",
    ]  # fmt: skip


class GuidedRecorder(Recorder):
    """Notes sampling too, with the places of masks."""

    def sample(self, masks: Masks = NO_MASKS) -> None:
        self.events.append(f"sample {self._plans[-1].step} {masks.places}")


class AllAllowed:
    """Guides request `a`, whose answers it wants to know in full."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.ready = True

    def prepare(self) -> None:
        """Do nothing."""

    def add(self, request: Request) -> None:
        self.known.add(request.request_id)

    def is_ready(self, request_id: str) -> bool:
        return self.ready

    def remove(self, request_id: str) -> None:
        self.known.remove(request_id)

    def guides(self, request_id: str) -> bool:
        return request_id == "a"

    def masks(self, rows: Sequence[MaskRow]) -> RowMasks:
        assert all(list(row.answer) == list(range(10, 10 + len(row.answer))) for row in rows)
        return RowMasks(torch.full((sum(1 + len(row.drafts) for row in rows), 2), -1, dtype=torch.int32), {})


def test_a_step_with_a_mask_is_sampled_once_all_results_before_it_are_in() -> None:
    """Its forward pass is launched before that, as any other's."""
    loop, _ = recorded()
    loop._executor = recorder = GuidedRecorder()
    loop.guided.provider = provider = AllAllowed()
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=3))
    ask(loop, "b", [1] * 10, replace(GREEDY, max_tokens=4))
    assert provider.known == {"a", "b"}
    assert drain(loop) == {"a": [10, 11, 12], "b": [10, 11, 12, 13]}
    assert recorder.events == [
        "forward 1", "sample 1 [0]", "forward 2", "result 1", "sample 2 [0]", "forward 3", "result 2", "sample 3 [0]",
        "forward 4", "sample 4 []", "result 3", "result 4",
    ]  # fmt: skip


def test_no_step_waits_for_a_request_whose_masks_are_not_ready() -> None:
    """Its grammar may take long to compile. Meanwhile it can be aborted, and its deadline counts from when it came."""
    now = [0.0]
    loop, _ = recorded()
    loop._executor, loop._clock, loop.guided.provider = GuidedRecorder(), lambda: now[0], (provider := AllAllowed())
    ask(loop, "b", [1] * 10, replace(GREEDY, max_tokens=4))
    provider.ready = False
    for name, timeout in (("a", None), ("left", None), ("late", 5.0)):
        ask(loop, name, [1] * 10, replace(GREEDY, max_tokens=3), timeout=timeout)
    said: dict[str, list[int]] = {"b": []}
    while len(said["b"]) < 4:
        for output in loop.step().each():
            said[output.request_id].extend(output.token_ids)
    assert loop.has_work
    loop.abort(["left"])
    assert [(output.request_id, output.finish_reason) for output in loop.step().each()] == [("left", "abort")]
    assert loop.step().events == []
    provider.ready, now[0] = True, 6.0
    assert drain(loop) == {"a": [10, 11, 12], "late": []}
    assert not provider.known
    provider.ready = False
    ask(loop, "a", [1] * 10, GREEDY)
    assert [output.finish_reason for output in loop.abort_all().events] == ["abort"]
    assert not loop.has_work


def test_who_waits_for_masks_is_counted_and_its_deadline_passes() -> None:
    now = [0.0]
    loop, _ = recorded()
    loop._clock, loop.guided.provider = lambda: now[0], (provider := AllAllowed())
    provider.ready = False
    ask(loop, "late", [1] * 10, GREEDY, timeout=5.0)
    ask(loop, "patient", [1] * 7, GREEDY)
    assert loop.report().waiting == 2
    assert loop.step().events == []
    now[0] = 5.0
    assert [(e.request_id, e.finish_reason) for e in loop.step().events] == [("late", "timeout")]
    assert provider.known == {"patient"} and loop.report().waiting == 1


def test_a_prompt_that_forks_share_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 choices of each of eight prompts of 8,000 tokens were checked for seconds between two steps."""
    loop, _ = recorded()
    check, lengths = supported_requests.check_tokens, list[int]()

    def counted(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
        lengths.append(len(prompt))
        check(prompt, params, vocab_size)

    monkeypatch.setattr(supported_requests, "check_tokens", counted)
    params = replace(GREEDY, max_tokens=2)
    for first, prompt in (("a", (1,) * 10), ("b", (2,) * 20)):
        asked = Request(request_id=first, prompt_token_ids=prompt, sampling=params)
        forks = [replace(asked, request_id=f"{first}{number}", fork_of=first) for number in range(3)]
        process.handle(to_add([asked, *forks])[0], loop, mock.Mock())
    assert lengths == [10, 0, 0, 0, 20, 0, 0, 0]
    outside = Request(request_id="c", prompt_token_ids=(INFO.vocab_size,), sampling=params)
    for request in (outside, replace(outside, request_id="d", fork_of="c")):
        loop.add(request)
    refused = [output for output in loop.step().events if output.finish_reason == "invalid"]
    assert [output.request_id for output in refused] == ["c", "d"]
    assert set(drain(loop)) == {name + number for name in "ab" for number in ("", "0", "1", "2")}


def test_no_python_code_runs_for_each_id_of_a_long_prompt() -> None:
    with mock.patch.object(request_checks, "_is_number", wraps=request_checks._is_number) as looked_at:
        request_checks.check_tokens((0, *range(64)) * 100, replace(GREEDY, stop_token_ids=(63,)), 64)
        assert not looked_at.called
    wrong: list[Any] = [-1, 64, True, 1.0, "1"]
    for token in wrong:
        with pytest.raises(NotAdmissibleError, match=f"token id {token!r} is outside the vocabulary of 64"):
            request_checks.check_tokens((1, 2, token), GREEDY, 64)
        with pytest.raises(NotAdmissibleError, match=f"token id {token!r} is outside"):
            request_checks.check_tokens((1, 2), replace(GREEDY, bad_words_token_ids=((3, token),)), 64)


def test_a_fork_enters_behind_the_request_whose_prompt_it_shares() -> None:
    """Its masks may be ready a moment after the other's were not; it would compute the prompt again."""
    loop, _ = recorded()
    loop._executor, loop.guided.provider = GuidedRecorder(), (provider := AllAllowed())
    provider.ready = False
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=2))
    provider.ready = True
    with mock.patch.object(loop._scheduler, "add", wraps=loop._scheduler.add) as added:
        ask(loop, "b", [1] * 10, replace(GREEDY, max_tokens=2), fork_of="a")
        loop.step()
    assert [call.args[0].request_id for call in added.call_args_list] == ["a", "b"]


def test_an_answer_that_stops_early_wastes_one_step_and_the_loop_comes_to_rest() -> None:
    loop, recorder = recorded()
    ask(loop, "a", [1] * 10, replace(GREEDY, stop_token_ids=(12,)))
    assert drain(loop) == {"a": [10, 11, 12]}
    assert recorder.events[-2:] == ["result 3", "result 4"]
    assert len(recorder.events) == 8


def test_what_arrives_while_a_wasted_step_runs_is_planned_at_once() -> None:
    loop, recorder = recorded()
    ask(loop, "a", [1] * 10, replace(GREEDY, stop_token_ids=(10,)))
    loop.step()
    assert recorder.events == ["forward 1", "forward 2", "result 1"]
    ask(loop, "b", [2] * 5, replace(GREEDY, max_tokens=1))
    loop.step()
    assert recorder.events[3:] == ["forward 3", "result 2"]
    assert drain(loop) == {"b": [5]}


class SlowRecorder(Recorder):
    """Steps take 50 ms of a clock that only waiting moves; `visitor` comes in the middle of the third wait."""

    def __init__(self) -> None:
        super().__init__()
        self.step_seconds = 0.05
        self.now = 100.0
        self.waits = 0
        self.visitor: Callable[[], None] = lambda: None
        self.plans: list[StepPlan] = []

    def forward(self, plan: StepPlan) -> None:
        super().forward(plan)
        self.plans.append(plan)

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self.now += seconds
        self.waits += 1
        if self.waits == 3:
            self.visitor()


def slow() -> tuple[EngineLoop, SlowRecorder]:
    loop, _ = recorded()
    recorder = loop._executor = SlowRecorder()
    loop._clock = lambda: recorder.now
    return loop, recorder


def test_a_long_step_leaves_the_next_plan_open_until_it_has_nearly_ended() -> None:
    loop, recorder = slow()
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=5))
    assert drain(loop) == {"a": [10, 11, 12, 13, 14]}
    assert recorder.events == [
        "forward 1", "forward 2", "result 1",  # nothing is known yet
        "wait 0.042", "forward 3", "result 2", "wait 0.042", "forward 4", "result 3", "wait 0.042", "forward 5",
        "result 4", "wait 0.042", "result 5",
    ]  # fmt: skip


def test_who_arrives_in_a_long_step_is_in_the_next() -> None:
    loop, recorder = slow()
    recorder.visitor = lambda: ask(loop, "b", [2] * 5, replace(GREEDY, max_tokens=2))
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=9))
    assert len(drain(loop)["b"]) == 2
    third = recorder.events.index("forward 5")
    assert recorder.events[:third].count("wait 0.042") == 3
    assert [chunk.num_tokens for chunk in recorder.plans[4].chunks] == [5]


def test_a_step_that_ends_sooner_than_expected_is_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, recorder = slow()
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=5))
    loop.step()
    monkeypatch.setattr(SlowRecorder, "idle", True)
    assert drain(loop)["a"][-1] == 14
    assert not recorder.waits


def test_an_abort_in_flight_is_reported_once_and_its_row_and_blocks_are_free() -> None:
    loop, _ = recorded()
    ask(loop, "a", [1] * 100, GREEDY)
    ask(loop, "b", [2] * 7, GREEDY)
    loop.step()
    loop.step()
    loop.abort(["a", "a", "unknown"])
    ends = []
    while loop.has_work:
        ends += [(e.request_id, e.finish_reason) for e in loop.step().events if e.finish_reason]
    assert ends == [("a", "abort"), ("b", "length")]
    loop.check_integrity()
    assert loop.report().kv_blocks_used == 0


def test_blocks_of_a_client_that_left_are_back_within_two_steps() -> None:
    """Whenever it leaves: while it waits, in the middle of its prompt, or of its answer."""
    loop, _ = recorded()
    draws = random.Random(3)
    for number in range(200):
        ask(loop, f"{number}", [number] * draws.randint(1, 100), GREEDY)
        for _ in range(draws.randrange(5)):
            loop.step()
        loop.abort([f"{number}"])
        for _ in range(2):
            if loop.has_work:
                loop.step()
        assert loop.report().kv_blocks_used == 0
    loop.check_integrity()


def test_a_deadline_passes_in_flight() -> None:
    loop, _ = recorded()
    now = 0.0
    loop._clock = lambda: now
    ask(loop, "late", [1] * 10, GREEDY, timeout=5.0)
    ask(loop, "other", [1] * 10, GREEDY)
    loop.step()
    now = 5.0
    assert [(e.request_id, e.finish_reason) for e in loop.step().events if e.finish_reason] == [("late", "timeout")]
    assert len(drain(loop)["other"]) == 20 - 2


def test_step_durations_that_nobody_reads_take_no_more_and_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_stats, "MOST_UNREAD_STEPS", 3)
    loop, recorder = recorded()
    recorder.step_seconds = 0.01
    ask(loop, "a", [1] * 10, replace(GREEDY, max_tokens=9))
    drain(loop)
    assert loop.report().step_seconds == [0.01] * 3


def test_a_failed_step_ends_the_loop_with_a_dump(caplog: pytest.LogCaptureFixture) -> None:
    loop, recorder = recorded()
    recorder.fail_at = 3
    ask(loop, "a", [1] * 10, GREEDY)
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError, match="the device is gone"):
        drain(loop)
    assert "step 3: 1 tokens, 1 decodes" in caplog.text
    assert "running=1" in caplog.text


def test_requests_that_can_never_run_are_reported_as_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = recorded()
    ask(loop, "a", [1] * 10, GREEDY)
    monkeypatch.setattr(loop._scheduler, "schedule", lambda now: None)
    with pytest.raises(RuntimeError, match="no step can be planned"):
        drain(loop)


def test_a_target_that_cannot_be_met_is_reported_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    loop, _ = recorded()
    adaptive = loop._scheduler.limits = AdaptiveLimits(4, 64, ttft_p90=0.01)
    ask(loop, "a", [1] * 10, GREEDY)
    with caplog.at_level(logging.INFO):
        for met in (True, False, False, True, True):
            adaptive.target_met, adaptive.message = met, "--target-ttft-p90 cannot be met"
            loop.step()
    assert [record.message for record in caplog.records] == [
        "--target-ttft-p90 cannot be met",
        "the latency targets are met again",
    ]


def test_all_that_runs_is_reported_when_everything_is_aborted() -> None:
    loop, _ = recorded()
    ask(loop, "a", [1] * 10, GREEDY)
    ask(loop, "empty", [], GREEDY)
    loop.step()
    ask(loop, "b", [1] * 10, GREEDY)
    assert {(e.request_id, e.finish_reason) for e in loop.abort_all().events} == {("a", "abort"), ("b", "abort")}
    loop.step()
    assert not loop.has_work


SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 160, "max_num_seqs": 6}


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Callable[..., EngineLoop]]:
    started = []

    def start(**settings: Any) -> EngineLoop:
        loop = start_engine(EngineConfig(model=str(tiny_model), **{**SETTINGS, **settings}), lambda *_: None)
        started.append(loop)
        return loop

    yield start
    for loop in started:
        loop.close()


def test_no_step_is_to_take_so_long_that_the_watchdog_ends_the_engine(engine: Callable[..., EngineLoop]) -> None:
    assert engine(watchdog_timeout=8.0)._scheduler.settings.max_step_seconds == 1.0


def mixed_requests(seed: int) -> list[tuple[str, list[int], SamplingParams]]:
    """Requests with every kind of sampling, some of which stop early."""
    rng = random.Random(seed)
    return [
        (
            f"{seed}-{i}",
            [rng.randrange(64) for _ in range(rng.randint(1, 90))],
            SamplingParams(
                max_tokens=rng.randint(1, 60),
                temperature=rng.choice([0.0, 0.7, 1.0]),
                top_p=rng.choice([0.9, 1.0]),
                repetition_penalty=rng.choice([1.0, 1.3]),
                presence_penalty=rng.choice([0.0, 0.5]),
                min_tokens=rng.choice([0, 3]),
                stop_token_ids=rng.choice([(), (5, 9), tuple(range(20))]),
                seed=rng.choice([None, 7]),
                logprobs=rng.choice([None, 2]),
            ),
        )
        for i in range(12)
    ]


@pytest.mark.parametrize("memory", ["plenty", "tiny", "tiny with swap space"])
def test_one_step_ahead_gives_the_same_tokens(memory: str, engine: Callable[..., EngineLoop]) -> None:
    blocks = 128 if memory == "plenty" else 11
    loop = engine(
        num_kv_blocks=blocks,
        max_num_batched_tokens=48,
        swap_space="swap" in memory and 1 << 20,
        enable_prefix_caching=memory == "plenty",
    )
    if "swap" in memory:  # as if computing anew were dear
        loop._scheduler.planner.settings = replace(loop._scheduler.settings, swap_block_seconds=1e-9)
    for seed in range(3):
        said = {}
        for depth in (1, 2):
            loop._depth = depth
            for name, prompt, params in mixed_requests(seed):
                ask(loop, name, prompt, params)
            said[depth] = drain(loop)
        assert said[1] == said[2]
        assert len(said[1]) == 12
    assert (loop.report().preemptions > 0) == (memory != "plenty")
    assert (loop.report().swapped_in_blocks > 0) == ("swap" in memory)


def test_a_loaded_engine_knows_which_model_it_is(tiny_model: Path, engine: Callable[..., EngineLoop]) -> None:
    info = engine().info
    assert info.model == ModelInfo(
        commit=None, size=sum(file.stat().st_size for file in tiny_model.glob("*.safetensors"))
    )


def test_aborts_and_arrivals_in_flight_change_no_other_answer(engine: Callable[..., EngineLoop]) -> None:
    loop = engine(num_kv_blocks=24, max_num_batched_tokens=32)
    alone = {}
    for name, prompt, params in mixed_requests(9):
        ask(loop, name, prompt, params)
        alone |= drain(loop)
    rng = random.Random(1)
    waiting, aborted, ended = mixed_requests(9), set(), set()
    said: dict[str, list[int]] = {}
    while waiting or loop.has_work:
        if waiting and rng.random() < 0.4:
            name, prompt, params = waiting.pop()
            ask(loop, name, prompt, params)
        running = [name for name in said if name not in aborted | ended]
        if rng.random() < 0.1 and running and len(aborted) < 4:
            aborted.add(name := rng.choice(running))
            loop.abort([name])
        for output in loop.step().each():
            if output.finish_reason is not None:
                ended.add(output.request_id)
            said.setdefault(output.request_id, []).extend(output.token_ids)
    loop.check_integrity()
    assert len(aborted) == 4
    assert {name: tokens for name, tokens in said.items() if name not in aborted} == {
        name: tokens for name, tokens in alone.items() if name not in aborted
    }
    assert all(alone[name][: len(said[name])] == said[name] for name in aborted)


def test_forks_share_the_prompt_and_go_their_own_ways(engine: Callable[..., EngineLoop]) -> None:
    loop = engine(num_kv_blocks=64, max_num_batched_tokens=32)
    prompt = [random.Random(4).randrange(64) for _ in range(75)]
    choices = {f"n{i}": replace(GREEDY, temperature=1.0, seed=i) for i in range(4)}
    alone = {}
    for name, params in choices.items():
        ask(loop, name, prompt, params, cache_salt=name)
        alone |= drain(loop)
    assert len({tuple(tokens) for tokens in alone.values()}) == 4, "the answers should differ"
    for name, params in choices.items():
        ask(loop, name, prompt, params, fork_of=None if name == "n0" else "n0", cache_salt="forks")
    before = loop.report().copied_blocks
    assert drain(loop) == alone
    assert loop.report().copied_blocks > before


@pytest.mark.parametrize(("interval", "reports"), [(0.0, 5), (60.0, 1)])
def test_the_state_is_reported_while_a_long_prompt_gives_no_news(
    interval: float, reports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_REPORT_INTERVAL", interval)
    loop, connection = mock.Mock(has_work=True, adapters=None), mock.Mock()
    loop.step.return_value, loop.report.return_value = StepOutputs(), SchedulerStats(running=1)
    connection.receive.side_effect = [*[[]] * 5, [Shutdown()]]
    process.serve_loop(loop, connection)
    sent = [call.args[0] for call in connection.send.call_args_list[:-1]]  # the last says good-bye
    assert [message.stats.running for message in sent] == [1] * reports
