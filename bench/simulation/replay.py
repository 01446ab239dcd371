"""Replays a trace through the real scheduler, step by step, on a clock that advances by the cost model.

The loop is that of `octavo_engine.engine.loop`: while the device works on a step, the next one is planned and queued.
Every plan but the first is therefore made without knowing the tokens of the step before.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.simulation.cost_model import CostModel
from bench.simulation.traces import END, Ask
from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import StepOutputs, StepPlan, StepResult
from octavo_engine.engine.scheduler_stats import SchedulerStats, StatsReader, wasted_slots
from octavo_engine.sampling_params import SamplingParams

DEPTH = 2
_SAMPLES = 600


@dataclass(slots=True)
class Timeline:
    """The times of one request, in seconds of the simulated clock."""

    ask: Ask
    state: RequestState
    arrival: float
    first_token: float = float("nan")
    last_token: float = float("nan")
    tokens: int = 0
    cached: int = 0


@dataclass(slots=True)
class Recording:
    """The recording of one run."""

    timelines: list[Timeline] = field(default_factory=list)
    gaps: array[float] = field(default_factory=lambda: array("d"))
    """Seconds between one token and the next of the same request."""
    series: list[tuple[float, SchedulerStats]] = field(default_factory=list)
    """The scheduler's state over time."""
    steps: int = 0
    device_seconds: float = 0.0
    """Seconds for which the simulated device was busy."""
    seconds: float = 0.0
    """The simulated clock at the end."""
    scheduler_seconds: float = 0.0
    """Real time spent in `plan` and `update`."""
    planned_tokens: int = 0
    """Tokens computed, prefill and recomputation included."""

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's state at the end."""
        return self.series[-1][1]


class Device:
    """The simulated device, which takes the time of the cost model.

    It tracks the request of each row, so that it can return the row's next token.
    """

    def __init__(self, cost: CostModel, asks: Sequence[Ask]) -> None:
        self._cost = cost
        self._asks = {ask.name: ask for ask in asks}
        self._rows: dict[int, Ask] = {}
        self._free_at = 0.0

    def launch(self, plan: StepPlan, now: float) -> tuple[float, StepResult]:
        """Return the time when a step launched at `now` ends, and its result."""
        for new in plan.new_rows:
            self._rows[new.row] = self._asks[new.request_id]
        tokens = [self._next(row, start) for row, start in zip(plan.decode_rows, plan.decode_starts, strict=True)]
        tokens += [self._next(c.row, c.start + c.num_tokens - 1) for c in plan.chunks if c.samples]
        seconds = self._cost.seconds(plan)
        self._free_at = max(self._free_at, now) + seconds
        return self._free_at, StepResult(plan.step, tokens, seconds=seconds)

    def _next(self, row: int, position: int) -> int:
        """Return the token after `position`. After the end of an answer one more step may run; its token is dropped."""
        ask = self._rows[row]
        index = position + 1 - len(ask.prompt)
        return ask.answer[index] if index < len(ask.answer) else END


class Replay:
    """One trace replayed through one scheduler."""

    def __init__(self, scheduler: Scheduler, cost: CostModel, asks: Sequence[Ask], model_len: int) -> None:
        self._scheduler = scheduler
        self._device = Device(cost, asks)
        self._model_len = model_len
        self._followers = {ask.after: ask for ask in asks if ask.after is not None}
        self._coming = [(ask.at, number, ask) for number, ask in enumerate(asks) if ask.after is None]
        heapq.heapify(self._coming)
        self._open: dict[str, Timeline] = {}
        self._total = len(asks)
        self._recording = Recording()
        self._next_sample, self._interval = 0.0, max(ask.at for ask in asks) / _SAMPLES

    def run(self) -> Recording:
        """Run until every request has ended."""
        launched: deque[tuple[StepPlan, float, StepResult]] = deque()
        recording, now = self._recording, 0.0
        while len(recording.timelines) < self._total:
            self._arrive(now)
            while len(launched) < DEPTH and (plan := self._plan(now)) is not None:
                launched.append((plan, *self._device.launch(plan, now)))
            if launched:
                plan, ended, result = launched.popleft()
                now = max(now, ended)
                self._take(self._update(plan, result, now), now)
            elif self._coming:
                now = max(now, self._coming[0][0])
            else:
                raise RuntimeError(f"the scheduler plans nothing, and {len(self._open)} requests wait")
            self._sample(now)
        recording.seconds = now
        recording.series.append((now, self._state()))
        return recording

    def _plan(self, now: float) -> StepPlan | None:
        started = time.perf_counter()
        plan = self._scheduler.schedule(now)
        self._recording.scheduler_seconds += time.perf_counter() - started
        if plan is not None:
            self._recording.planned_tokens += plan.num_tokens
        return plan

    def _update(self, plan: StepPlan, result: StepResult, now: float) -> StepOutputs:
        started = time.perf_counter()
        outputs = self._scheduler.update(plan, result, now)
        self._recording.scheduler_seconds += time.perf_counter() - started
        self._recording.steps += 1
        self._recording.device_seconds += result.seconds
        return outputs

    def _arrive(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            at, _, ask = heapq.heappop(self._coming)
            most = self._model_len - len(ask.prompt)
            sampling = SamplingParams(max_tokens=most, stop_token_ids=(END,))
            request = Request(
                request_id=ask.name,
                prompt_token_ids=tuple(ask.prompt),
                sampling=sampling,
                priority=ask.priority,
                tenant=ask.tenant,
                cache_salt=ask.tenant,
            )
            self._open[ask.name] = Timeline(ask, self._scheduler.add(request, at), at)

    def _take(self, outputs: StepOutputs, now: float) -> None:
        gaps, timelines = self._recording.gaps, self._open
        for name in outputs.request_ids:
            timeline = timelines[name]
            gaps.append(now - timeline.last_token)
            timeline.last_token = now
            timeline.tokens += 1
        for event in outputs.events:
            timeline = timelines[event.request_id]
            if event.error is not None:
                raise RuntimeError(f"{event.request_id}: {event.error}")
            if event.token_ids:
                if timeline.tokens:
                    gaps.append(now - timeline.last_token)
                else:
                    timeline.first_token, timeline.cached = now, event.cached_tokens
                timeline.last_token = now
                timeline.tokens += len(event.token_ids)
            if event.finish_reason is not None:
                self._end(timeline, now)

    def _end(self, timeline: Timeline, now: float) -> None:
        ask = timeline.ask
        if timeline.tokens != len(ask.answer):
            raise RuntimeError(f"{ask.name} got {timeline.tokens} tokens of {len(ask.answer)}")
        del self._open[ask.name]
        self._recording.timelines.append(timeline)
        follower = self._followers.get(ask.name)
        if follower is not None:
            heapq.heappush(self._coming, (now + follower.at, len(self._recording.timelines) + self._total, follower))

    def _sample(self, now: float) -> None:
        if now >= self._next_sample:
            self._recording.series.append((now, self._state()))
            self._next_sample = now + self._interval

    def _state(self) -> SchedulerStats:
        """Return the reported statistics with the current number of wasted slots.

        The scheduler itself updates that number only now and then.
        """
        state = StatsReader(self._scheduler).read()
        holding = (timeline.state for timeline in self._open.values() if timeline.state.block_tables)
        state.kv_wasted_slots = wasted_slots(self._scheduler.memory, holding)
        return state
