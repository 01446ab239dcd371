"""Continuous batching: which requests run how many tokens in the next step.

There is no prefill phase and no decode phase. Each step has a budget of tokens; running requests are served first
(those that decode, then those whose prompt is being computed in chunks), and what is left admits waiting ones in order.
When blocks run out, a victim gives back its own, waits again ahead of all others, and is computed anew: nothing is
dropped.

`plan` counts a step's tokens as computed and its sampled token as in flight at once, so a next step can be planned
before the results are on the host. Blocks may change hands in between: the device runs steps in the order of plans.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from octavo_engine.core.kv_groups import KVMemory
from octavo_engine.core.preemption import choose_victim
from octavo_engine.core.request import FinishReason, Request, Status
from octavo_engine.core.step import NewRow, RequestOutput, RowResult, ScheduledRow, SchedulerStats, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The bounds of every step."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(slots=True)
class _Draft:
    """A plan in the making."""

    budget: int
    new_rows: dict[str, NewRow] = field(default_factory=dict)
    rows: dict[str, ScheduledRow] = field(default_factory=dict)
    preempted: bool = False

    def drop(self, request: Request) -> None:
        """Take back what was planned for a request that is preempted in the same step."""
        row = self.rows.pop(request.request_id, None)
        self.new_rows.pop(request.request_id, None)
        if row is not None:
            self.budget += row.num_tokens
            request.computed = row.start
            request.in_flight -= row.samples


class Scheduler:
    """Owns every request from `add` to its last output, and the KV memory they share."""

    def __init__(self, limits: SchedulerLimits, memory: KVMemory) -> None:
        self.limits = limits
        self.memory = memory
        self.stats = SchedulerStats(kv_blocks_total=memory.blocks_total)
        self._requests: dict[str, Request] = {}
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._free_rows = list(range(limits.max_num_seqs - 1, -1, -1))
        self._next_step = 0

    def add(self, request: Request) -> None:
        """Let a request wait. It was judged by admission.py before."""
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        """End a request now, whatever its state; None if there is no such request any more."""
        request = self._requests.get(request_id)
        return None if request is None else self._finish(request, reason)

    def abort_all(self) -> list[RequestOutput]:
        """End every request."""
        return [output for request_id in list(self._requests) if (output := self.abort(request_id))]

    def expire(self, now: float) -> list[RequestOutput]:
        """End the requests whose deadline has passed."""
        late = [r.request_id for r in self._requests.values() if r.deadline is not None and r.deadline <= now]
        return [output for request_id in late if (output := self.abort(request_id, FinishReason.TIMEOUT))]

    def next_deadline(self) -> float:
        """The earliest deadline of all requests; infinity if none has one."""
        return min((r.deadline for r in self._requests.values() if r.deadline is not None), default=float("inf"))

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._requests)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None if there is nothing to compute now."""
        draft = _Draft(self.limits.max_num_batched_tokens)
        self._continue_running(draft)
        if not draft.preempted:
            self._admit_waiting(draft, now)
        if not draft.rows:
            return None
        self._next_step += 1
        return StepPlan(self._next_step, tuple(draft.new_rows.values()), tuple(draft.rows.values()))

    def _continue_running(self, draft: _Draft) -> None:
        decoding = [request for request in self._running if request.known - request.computed == 1]
        prefilling = [request for request in self._running if request.known - request.computed > 1]
        for request in decoding + prefilling:
            if request.status is Status.RUNNING and draft.budget > 0 and self._wants_token(request):
                self._schedule(request, draft)

    def _wants_token(self, request: Request) -> bool:
        """False once the tokens in flight are its last ones by length."""
        limit = min(request.prompt_len + request.sampling.max_tokens, self.limits.max_model_len)
        return request.computed < request.known and request.known < limit

    def _schedule(self, request: Request, draft: _Draft) -> None:
        """Plan as many of a running request's tokens as the budget allows, unless it must be preempted instead."""
        self.memory.remember(request)  # what earlier steps filled; this one may still be dropped
        num_tokens = min(request.known - request.computed, draft.budget)
        end = request.computed + num_tokens
        while (new_blocks := self.memory.extend(request, end)) is None:
            victim = choose_victim(self._running)
            self._preempt(victim, draft)
            if victim is request:
                return
        samples = end == request.known
        row = ScheduledRow(request.request_id, request.row, request.computed, num_tokens, samples, new_blocks)
        draft.rows[request.request_id] = row
        draft.budget -= num_tokens
        request.computed = end
        request.in_flight += samples

    def _admit_waiting(self, draft: _Draft, now: float) -> None:
        while self._waiting and self._free_rows and draft.budget > 0:
            request = self._waiting[0]
            if request.in_flight:  # preempted while a step was under way: its token must arrive first
                return
            self.memory.open(request)
            if not self.memory.fits(request, request.known):  # a whole prompt, not only its first chunk
                self.memory.close(request)
                return
            self._waiting.popleft()
            self._start(request, draft, now)

    def _start(self, request: Request, draft: _Draft, now: float) -> None:
        if request.scheduled_at is None:  # what is computed again after a preemption is no question of a client's
            request.scheduled_at = now
            request.cached = request.computed
            self.stats.prefix_queried_tokens += request.prompt_len
            self.stats.prefix_hit_tokens += request.computed
        request.status = Status.RUNNING
        request.row = self._free_rows.pop()
        self._running.append(request)
        row = NewRow(request.row, tuple(request.token_ids), request.prompt_len, request.sampling)
        draft.new_rows[request.request_id] = row
        self._schedule(request, draft)
        # To a new row all its blocks are new, those from the prefix cache included.
        tables = tuple(tuple(table) for table in request.block_tables)
        draft.rows[request.request_id] = replace(draft.rows[request.request_id], new_blocks=tables)

    def _preempt(self, victim: Request, draft: _Draft) -> None:
        draft.drop(victim)
        draft.preempted = True
        self._release(victim)
        victim.status = Status.PREEMPTED
        self.stats.preemptions += 1
        self._waiting.appendleft(victim)

    def _release(self, request: Request, *, trusted: bool = True) -> None:
        """Give back a running request's row and blocks; what is not `trusted` must not be found by others."""
        if trusted:
            self.memory.remember(request)
        else:
            self.memory.forget(request)
        self.memory.close(request)
        self._running.remove(request)
        self._free_rows.append(request.row)
        request.row = -1

    def update(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """Take in a step's results; what each request's client should hear."""
        self.stats.step_seconds.append(result.seconds)
        results = {row.request_id: row for row in result.rows}
        outputs = []
        for row in plan.rows:
            request = self._requests.get(row.request_id)
            if request is not None and row.samples:  # else it ended while the step was under way
                outputs.append(self._take(request, results[row.request_id]))
        return outputs

    def _take(self, request: Request, result: RowResult) -> RequestOutput:
        request.in_flight -= 1
        if result.error is not None:
            return self._finish(request, FinishReason.ERROR, result)
        for token in result.token_ids:
            request.token_ids.append(token)
            reason = self._finish_reason(request, token)
            if reason is not None:
                return self._finish(request, reason, result)
        return self._output(request, result)

    def _finish_reason(self, request: Request, token: int) -> FinishReason | None:
        if token in request.sampling.stop_token_ids and request.num_output > request.sampling.min_tokens:
            request.stop_token = token
            return FinishReason.STOP
        if request.num_output >= request.sampling.max_tokens or len(request.token_ids) >= self.limits.max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, request: Request, reason: FinishReason, result: RowResult | None = None) -> RequestOutput:
        if request.status is Status.RUNNING:
            self._release(request, trusted=reason is not FinishReason.ERROR)
        else:
            self._waiting.remove(request)
        request.status = Status.FINISHED
        request.finish_reason = reason
        del self._requests[request.request_id]
        return self._output(request, result)

    def _output(self, request: Request, result: RowResult | None) -> RequestOutput:
        return RequestOutput(
            request_id=request.request_id,
            token_ids=result.token_ids if result else (),
            logprobs=result.logprobs if result else (),
            finish_reason=request.finish_reason,
            stop_token=request.stop_token,
            cached_tokens=request.cached,
            queue_seconds=(request.scheduled_at - request.arrival) if request.scheduled_at is not None else 0.0,
            error=result.error if result else None,
        )

    def report(self) -> SchedulerStats:
        """The state now; step durations are handed over once."""
        stats, self.stats.step_seconds = replace(self.stats), []
        stats.running, stats.waiting = len(self._running), len(self._waiting)
        stats.kv_blocks_used = self.memory.blocks_used
        return stats

    def check_integrity(self) -> None:
        """RuntimeError unless requests, rows and blocks are all accounted for. Cheap enough for every idle moment."""
        self.memory.check_integrity(self._requests.values())
        rows = sorted([*self._free_rows, *(request.row for request in self._running)])
        if rows != list(range(self.limits.max_num_seqs)):
            raise RuntimeError("a state-table row is lost or held twice")
        if len(self._running) + len(self._waiting) != len(self._requests):
            raise RuntimeError("a request is neither waiting nor running")
