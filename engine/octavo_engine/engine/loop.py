"""Plan a step, execute it, take in its results: the loop that everything else serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from octavo_engine.core.admission import NotAdmissibleError, check_length, check_sampling, check_tokens
from octavo_engine.core.request import FinishReason, Request, SamplingParams
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import RequestOutput, SchedulerStats
from octavo_engine.engine.info import EngineInfo
from octavo_engine.runner.executor import Executor


class EngineLoop:
    """The scheduler and the executor together. Not thread-safe: one thread owns it."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        info: EngineInfo,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._ended: list[RequestOutput] = []
        self._next_expiry = float("inf")

    def add(
        self,
        request_id: str,
        token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        timeout: float | None = None,
    ) -> None:
        """Accept a request. One that can never run ends at once with an error of its own."""
        try:
            self._check(token_ids, sampling)
        except NotAdmissibleError as error:
            self._ended.append(RequestOutput(request_id, (), finish_reason=FinishReason.ERROR.value, error=str(error)))
            return
        now = self._clock()
        deadline = now + timeout if timeout is not None else None
        request = Request(
            request_id, list(token_ids), sampling, now, priority=priority, cache_salt=cache_salt, deadline=deadline
        )
        self._scheduler.add(request)
        if deadline is not None:
            self._next_expiry = min(self._next_expiry, deadline)

    def _check(self, token_ids: Sequence[int], sampling: SamplingParams) -> None:
        check_length(len(token_ids), sampling.max_tokens, self.info.max_model_len)
        check_sampling(sampling)
        check_tokens(token_ids, sampling, self.info.vocab_size)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests that nobody waits for."""
        for request_id in request_ids:
            if (output := self._scheduler.abort(request_id)) is not None:
                self._ended.append(output)

    def abort_all(self) -> list[RequestOutput]:
        """End everything; the last news of all requests."""
        ended, self._ended = self._ended, []
        return ended + self._scheduler.abort_all()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work or bool(self._ended)

    def step(self) -> list[RequestOutput]:
        """One step; the news of all requests that have any."""
        outputs, self._ended = self._ended, []
        outputs += self._expire()
        plan = self._scheduler.plan(self._clock())
        if plan is not None:
            self._executor.submit(plan)
            outputs += self._scheduler.update(plan, self._executor.collect())
        return outputs

    def _expire(self) -> list[RequestOutput]:
        now = self._clock()
        if now < self._next_expiry:
            return []
        outputs = self._scheduler.expire(now)
        self._next_expiry = self._scheduler.next_deadline()
        return outputs

    def report(self) -> SchedulerStats:
        """The scheduler's state."""
        return self._scheduler.report()

    def check_integrity(self) -> None:
        """RuntimeError unless every request, row and block is accounted for."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        """Give back device and processes."""
        self._executor.close()
