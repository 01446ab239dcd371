"""Continuous batching: the scheduler decides how many tokens of which requests the next step computes.

A step mixes prefill and decode: each decoding request gets its token, then chunks of prompts fill the token budget.
`schedule` counts tokens as computed before they are, so that the next step is planned while this one runs. A block may
be freed and taken again in between: the device runs steps in order. docs/concepts/scheduling.md explains the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.parallel_sampling import begins_as, take_ready
from octavo_engine.core.planner import Planner
from octavo_engine.core.proposer import Proposer
from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.settings import SchedulerSettings, StepLimits
from octavo_engine.core.step import RequestOutput, RowError, StepOutputs, StepPlan, StepResult


class Scheduler:
    """Owns every request from `add` to its last output, and the KV memory they share."""

    def __init__(
        self,
        settings: SchedulerSettings,
        memory: KVMemory,
        limits: StepLimits | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """Without `limits` a step is bounded by the settings alone; with a `proposer` it may have draft tokens."""
        if proposer is not None and memory.has_states:
            raise ValueError("layers with a recurrent state cannot take rejected drafts back")
        self.settings = settings
        self.proposer = proposer
        self.memory = memory
        self.limits = limits or StepLimits(settings.max_num_seqs, settings.max_num_batched_tokens)
        self._requests: dict[str, RequestState] = {}
        self._forks: list[RequestState] = []  # requests that wait for their parent's prompt to be computed
        self.planner = Planner(settings, memory, self.limits, self._requests)
        self._policy = self.planner.policy
        self.counters = self.planner.counters
        self.running, self.waiting = self.planner.running, self._policy.waiting
        self._launched: deque[list[RequestState]] = deque()  # for each plan without results, its sampling requests
        self._next_step = 0
        self._updated_at: float | None = None

    def add(self, request: Request, now: float) -> RequestState:
        """Queue a request at `now`; raises NotAdmissibleError if the KV memory could not hold it even alone."""
        final_len = min(len(request.prompt_token_ids) + request.sampling.max_tokens, self.settings.max_model_len)
        self.memory.check_ever_fits(final_len)
        state = RequestState(request, now, final_len)
        self._requests[state.request_id] = state
        state.alone = self._policy.accounts.open(request.tenant, request.weight)
        if begins_as(state, self._requests.get(request.fork_of or "")):
            state.status = Status.FORKING
            self._forks.append(state)
        else:
            state.fork_of = None
            self.waiting.add(state)
        return state

    def abort(
        self, request_id: str, reason: FinishReason = FinishReason.ABORT, *, error: str | None = None
    ) -> RequestOutput | None:
        """End a request now, whatever its state; None if there is no such request any more."""
        state = self._requests.get(request_id)
        return None if state is None else self._finish(state, reason, error=error)

    def abort_all(self) -> list[RequestOutput]:
        """End every request."""
        return [output for request_id in list(self._requests) if (output := self.abort(request_id))]

    def expire(self, now: float) -> list[RequestOutput]:
        """End the requests whose deadline has passed."""
        late = [r.request_id for r in self._requests.values() if r.deadline is not None and r.deadline <= now]
        return [output for request_id in late if (output := self.abort(request_id, FinishReason.TIMEOUT))]

    def next_deadline(self) -> float:
        """Return the earliest deadline of all requests; infinity if none has a deadline."""
        return min((r.deadline for r in self._requests.values() if r.deadline is not None), default=float("inf"))

    @property
    def has_work(self) -> bool:
        """True if any request is waiting or running."""
        return bool(self._requests)

    @property
    def sampling(self) -> Sequence[RequestState]:
        """The requests that sample in the newest plan, in the order of its result."""
        return self._launched[-1]

    def schedule(self, now: float) -> StepPlan | None:
        """Return the next step's plan, or None if nothing can be computed before a launched step's results come."""
        self.memory.tick(now)
        self._policy.tick(now, self.running)
        for fork in reversed(take_ready(self._forks, self._requests)) if self._forks else ():
            fork.status = Status.WAITING
            self.waiting.add(fork, first=True)
        builder = self.planner.schedule(now)
        if builder.empty:
            return None
        self._next_step += 1
        self._launched.append(builder.sampling)
        return builder.build(self._next_step, self.memory.take_operations())

    def update(self, plan: StepPlan, result: StepResult, now: float) -> StepOutputs:
        """Take in the oldest launched step's results; return the outputs for each request's client."""
        outputs = StepOutputs(events=self._take_back(plan.step, result.lost) if result.lost else [])
        requests = self._launched.popleft()
        ids, tokens = outputs.request_ids, outputs.token_ids
        events = {*result.logprobs, *result.errors, *plan.drafts, *range(len(plan.decode_rows), len(requests))}
        for index, (state, token) in enumerate(zip(requests, result.token_ids, strict=True)):
            state.in_flight -= 1
            known = state.token_ids
            known.append(token)
            if len(known) >= state.final_len or token in state.stop_token_ids or index in events:
                if state.finish_reason is None:  # else it ended while the step was under way
                    outputs.events.append(self._event(state, index, token, result, now))
            else:
                ids.append(state.request_id)
                tokens.append(token)
        if self.proposer is not None:
            self._propose(requests, self.proposer)
        self._observe(plan, result, now)
        return outputs

    def _take_back(self, step: int, lost: Mapping[str, RowError]) -> list[RequestOutput]:
        """Queue lost requests again, and those begun after `step`, which may share lost blocks; end the twice lost."""
        if all(name in self._requests and self._requests[name].lost >= step for name in lost):
            return []  # an earlier step lost them already
        ends: list[RequestOutput] = []
        again: dict[RequestState, RequestState] = {}
        for state in list(self._requests.values())[::-1]:
            failure = lost.get(state.request_id) if state.lost < step else None
            if failure is not None and state.lost:
                ends.append(self._finish(state, failure[0], error=failure[1]))
            elif failure is not None or state.began > step:
                state.lost = state.lost if failure is None else self._next_step
                if state.status is Status.RUNNING:
                    self.planner.requeue(state)
                self.memory.swap.drop(state)
                again[state] = replace(state, final_len=0, finish_reason=FinishReason.ABORT)  # for its tokens in flight
                state.in_flight = 0
        self._launched = deque([again.get(r, r) for r in plan] for plan in self._launched)
        self.memory.forget_all()
        return ends

    def _event(self, state: RequestState, index: int, token: int, result: StepResult, now: float) -> RequestOutput:
        """Return a request's output that is more than one token; `token`, the first, is in `token_ids` already."""
        if (failure := result.errors.get(index)) is not None:
            state.token_ids.pop()
            return self._finish(state, failure[0], error=failure[1])
        if state.num_output == 1:
            self.limits.on_first_token(now - state.arrival)
        tokens, reason = [token], state.end_by(token)
        for accepted in result.more_token_ids.get(index, ()):
            if reason is not None:
                break
            state.token_ids.append(accepted)
            tokens.append(accepted)
            reason = state.end_by(accepted)
        if state.status is Status.RUNNING:  # else it was preempted, and its accepted drafts must be computed again
            state.computed += len(tokens) - 1
        output = state.output() if reason is None else self._finish(state, reason)
        del tokens[state.request.sampling.max_tokens :]  # max_tokens 0 asks for no token, though one was sampled
        logprobs = result.logprobs.get(index, ())[: len(tokens)]
        return replace(output, token_ids=tuple(tokens), logprobs=logprobs, prompt=result.prompts.get(index))

    def _propose(self, requests: Iterable[RequestState], proposer: Proposer) -> None:
        """Get draft tokens for the requests whose results came: no more than their answers have room for."""
        for state in requests:
            room = min(state.final_len - 1, state.short_end) - state.known
            state.drafts = tuple(proposer.propose(state.request_id, state.token_ids)[:room]) if room > 0 else ()
            if state.drafts:
                state.capacity = state.computed  # so that the next plan looks at its tables and drafts

    def _finish(self, state: RequestState, reason: FinishReason, *, error: str | None = None) -> RequestOutput:
        if state.status is Status.RUNNING:
            self.planner.release(state)
        elif state.status is Status.FORKING:
            self._forks.remove(state)
        else:
            self.waiting.remove(state)
        if reason is FinishReason.ERROR:
            self.memory.forget(state)
        self.memory.swap.drop(state)
        self._policy.charge([state])
        self._policy.accounts.close(state.tenant)
        state.status = Status.FINISHED
        state.finish_reason = reason
        state.final_len = 0  # tokens still in flight are not reported
        del self._requests[state.request_id]
        return state.output(error)

    def expected_seconds(self, plan: StepPlan) -> float:
        """Predict the seconds of a step, whose drafts count as prompt tokens, from earlier ones; 0 if there is none."""
        return self.planner.cost.expected_seconds(plan.num_tokens - len(plan.decode_rows))

    def _observe(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Learn from a step's duration, and from the time between tokens that clients saw."""
        self.counters.step_seconds.append(result.seconds)
        decodes, context = len(plan.decode_rows), sum(plan.decode_starts) + sum(chunk.start for chunk in plan.chunks)
        self.planner.cost.observe(plan.num_tokens - decodes, result.seconds, decodes, context)
        if self._updated_at is not None and plan.decode_rows:
            self.limits.on_token_gap(now - self._updated_at, len(plan.decode_rows))
        self.limits.update(now)
        self._updated_at = now if self._launched or self._requests else None

    def check_integrity(self) -> None:
        """Raise RuntimeError unless requests, rows and blocks are all accounted for. To be called when idle."""
        self.memory.check_integrity(list(self._requests.values()))
        if len(self.running) + len(self.waiting) + len(self._forks) != len(self._requests):
            raise RuntimeError("a request is neither waiting nor running")
        self._policy.accounts.check_integrity(len(self._requests))
        self.running.check_integrity(self.settings.max_preemptions)
