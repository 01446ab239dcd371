"""The engine loop: plans a step, launches it, and processes the results of the step before."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import RequestOutput, StepOutputs, StepPlan
from octavo_engine.engine.adapters import Adapters
from octavo_engine.engine.adaptive_limits import TargetLog
from octavo_engine.engine.dump import describe
from octavo_engine.engine.guided_requests import GuidedRequests
from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.scheduler_stats import SchedulerStats, StatsReader
from octavo_engine.engine.supported_requests import check_supported
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.runner.executor import Executor
from octavo_engine.structured.mask_provider import MaskProvider

DEPTH = 2
"""Steps launched at once: while the device works on one, the next is planned and queued behind it."""
LEAD = 0.008
"""How many seconds before the launched steps' estimated end the next step is planned. Requests that arrive until then
can still be part of it. An estimate that is too long costs only the time of one plan: the loop notices the true end."""
_PREPARATION_PAUSE = 0.002
"""Seconds between two checks of an adapter or a grammar that is being prepared while no request can run without it."""
_MAX_EMPTY_TURNS = 1000
"""The most turns in a row in which requests wait, but none runs and no step can be planned; then the loop fails."""

log = logging.getLogger(__name__)


class EngineLoop:
    """Runs a scheduler and an executor together. Not thread-safe: one thread owns the loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
        depth: int = DEPTH,
        mask_provider: MaskProvider | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._stats = StatsReader(scheduler)
        self._executor = executor
        self._clock = clock
        self._depth = depth
        self.guided = GuidedRequests(mask_provider, self._end_guided)
        self.adapters = adapters
        self._launched: deque[StepPlan] = deque()
        self._waits_for_masks = False
        """Whether the newest step is not sampled yet; no other step is launched before that."""
        self._busy_until = 0.0
        """The estimated end of the launched steps, by the loop's clock."""
        self._ended: list[RequestOutput] = []
        self._next_expiry = float("inf")
        self._empty_turns = 0
        self._target_log = TargetLog()
        self._checked_prompt: Sequence[int] = ()
        """The prompt of the last request that is supported. It is the same object for a request and its forks, of which
        there may be 127: to check the ids of a long prompt for each takes as long as several steps."""

    def add(self, request: Request) -> None:
        """Accept a request. A request that can never run ends at once with an error output."""
        try:
            adapters, guided = self.adapters is not None, self.guided.provider is not None
            check_supported(request, self.info, adapters=adapters, guided=guided, checked=self._checked_prompt)
            self._checked_prompt = request.prompt_token_ids
            if self.adapters is not None:
                self.adapters.store.begin(request)
        except NotAdmissibleError as error:
            self._refuse(request, error)
            return
        now = self._clock()
        if self.guided.add(request, now):
            self._schedule(request, now)
        elif request.timeout is not None:
            self._next_expiry = min(self._next_expiry, now + request.timeout)

    def _refuse(self, request: Request, error: NotAdmissibleError) -> None:
        reason = FinishReason.INVALID.value
        self._ended.append(RequestOutput(request.request_id, (), finish_reason=reason, error=str(error)))

    def _schedule(self, request: Request, arrival: float) -> None:
        try:
            state = self._scheduler.add(request, arrival)
        except NotAdmissibleError as error:
            self._refuse(request, error)
            return
        if state.deadline is not None:
            self._next_expiry = min(self._next_expiry, state.deadline)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests whose answers are not needed any more. Launched steps still compute them, without effect."""
        for request_id in request_ids:
            if self.guided.discard(request_id):
                self._ended.append(RequestOutput(request_id, (), finish_reason=FinishReason.ABORT.value))
            elif (output := self._scheduler.abort(request_id)) is not None:
                self._ended.append(output)

    def abort_all(self) -> StepOutputs:
        """End all requests, and return their last outputs."""
        self.abort([request.request_id for request in self.guided.waiting])
        ended, self._ended = self._ended, []
        return StepOutputs(events=ended + self._scheduler.abort_all())

    @property
    def has_work(self) -> bool:
        """True if `step` would do anything."""
        return self._scheduler.has_work or bool(self._launched or self._ended or self.guided.any_waiting)

    def step(self) -> StepOutputs:
        """Launch steps so that the device stays busy, wait for its oldest step, and return the requests' outputs.

        A step is planned before the step in front of it has ended. While it is too early to plan the next one, this
        returns without results, and the caller should add the requests that have arrived before it calls again.
        """
        try:
            outputs = self._step()
        except Exception:
            log.error("the step failed: %s", describe(self._launched, self._stats.read()))
            raise
        for output in outputs.events:
            if output.finish_reason is not None:
                self._forget(output.request_id)
        return outputs

    def _forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self.guided.remove(request_id)
        if self.adapters is not None:
            self.adapters.store.end(request_id)
        if self._scheduler.proposer is not None:
            self._scheduler.proposer.remove(request_id)

    def _step(self) -> StepOutputs:
        events, self._ended = self._ended, []
        for request, arrival in self.guided.take_ready():
            self._schedule(request, arrival)
        events += self._expire()
        if self.adapters is not None:
            events += self.adapters.end_failed()
        if self._early():
            self._executor.wait(self._busy_until - LEAD - self._clock())
            return StepOutputs(events=events)
        self._launch()
        if self._early():
            return StepOutputs(events=events)
        if not self._launched:
            self._pause_or_fail()
            return StepOutputs(events=events)
        self._empty_turns = 0
        result = self._executor.result()
        now = self._clock()
        plan = self._launched.popleft()
        if plan.drafts:
            self._stats.count_drafts(plan, result)
        outputs = self._scheduler.update(plan, result, now)
        self._stats.drop_unread()
        if self._waits_for_masks:
            self._sample()
        self._busy_until = now + sum(map(self._scheduler.expected_seconds, self._launched))
        outputs.events[:0] = events
        self._target_log.note(self._scheduler.limits)
        return outputs

    def _early(self) -> bool:
        """Return True if it is too early to plan the next step: the device is busy for longer than planning takes."""
        if not 0 < len(self._launched) < self._depth or self._executor.idle:
            return False
        return self._busy_until - self._clock() > LEAD

    def _launch(self) -> None:
        """Plan and launch as many steps as may be under way now."""
        while len(self._launched) < self._depth and not self._waits_for_masks and not self._early():
            now = self._clock()
            if self.adapters is not None:
                self.adapters.before_plan(self._scheduler.running, device_is_idle=not self._launched)
            if (plan := self._scheduler.schedule(now)) is None:
                return
            self._launched.append(plan)
            self._executor.forward(plan)
            self._sample()
            self._busy_until = max(now, self._busy_until) + self._scheduler.expected_seconds(plan)

    def _sample(self) -> None:
        """Sample the newest step, unless its guided requests' masks depend on results that have not come yet."""
        guided = self.guided.among(self._scheduler.sampling)
        self._waits_for_masks = bool(guided) and len(self._launched) > 1
        if not self._waits_for_masks:
            self._executor.sample(self.guided.masks(guided, self._launched[-1].drafts))

    def _end_guided(self, state: RequestState, error: Exception) -> None:
        reason = FinishReason.INVALID if isinstance(error, NotAdmissibleError) else FinishReason.ERROR
        ended = self._scheduler.abort(state.request_id, reason, error=f"guided decoding failed: {error}")
        self._ended += [ended] if ended else []

    def _pause_or_fail(self) -> None:
        """Pause while a grammar or adapter is prepared; fail if requests have waited for too long without a reason."""
        if self.guided.any_waiting or (self.adapters is not None and self.adapters.is_loading):
            time.sleep(_PREPARATION_PAUSE)
            return
        self._empty_turns = self._empty_turns + 1 if self._scheduler.has_work else 0
        if self._empty_turns > _MAX_EMPTY_TURNS:
            raise RuntimeError("requests wait, nothing runs, and no step can be planned")

    def _expire(self) -> list[RequestOutput]:
        now = self._clock()
        if now < self._next_expiry:
            return []
        outputs = self._scheduler.expire(now)
        outputs += [
            RequestOutput(request_id, (), finish_reason=FinishReason.TIMEOUT.value)
            for request_id in self.guided.expire(now)
        ]
        self._next_expiry = min(self._scheduler.next_deadline(), self.guided.next_deadline())
        return outputs

    def report(self) -> SchedulerStats:
        """Return the scheduler's state, with the requests that wait for their grammar counted as waiting."""
        stats = self._stats.read()
        stats.waiting += len(self.guided.waiting)
        if self.adapters is not None:
            stats.running_adapters, stats.waiting_adapters = self.adapters.names_in_use(self._scheduler.running)
        return stats

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every request, row and block is accounted for."""
        self._scheduler.check_integrity()

    def check_executor(self) -> None:
        """Raise EngineDeadError if a rank's process has died while it was idle."""
        self._executor.check()

    def close(self) -> None:
        """Release the device and end the ranks' processes."""
        if self.adapters is not None:
            self.adapters.store.close()
        self._executor.close()
