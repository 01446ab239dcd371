"""Continuous batching: which requests run how many tokens in the next step.

There is no prefill phase and no decode phase. Each step has a budget of tokens. Every request that decodes gets its one
token first; what is left goes to prompts in chunks, of running requests and then of newly admitted ones. When blocks
run out, a victim gives back its own, waits, and is computed anew or brought back from the swap space: nothing is
dropped. docs/concepts/scheduling.md tells the whole story with a picture.

`plan` counts a step's tokens as computed and its sampled tokens as in flight at once, so the next step can be planned
before the results are on the host. Blocks may change hands in between: the device runs steps in the order of plans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from octavo_engine.core.adaptive import AdaptiveLimits
from octavo_engine.core.draft import Draft
from octavo_engine.core.fairness import LEFTOVER, Accounts
from octavo_engine.core.forks import Forks, begins_as
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.preemption import choose_victim, choose_victims, swap_is_cheaper, yielding_to
from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import (
    NewRow,
    RequestOutput,
    SchedulerStats,
    StepOutputs,
    StepPlan,
    StepResult,
)
from octavo_engine.core.step_cost import StepCost
from octavo_engine.core.waiting_queue import WaitingQueue

_LOOK_AHEAD = 4
"""Waiting requests whose blocks are not there that a plan looks past."""
_TRY_EVERY = 8
"""Steps after which a blocked request is tried again though no blocks came back: its beginning may be known now."""
_WASTE_EVERY = 16
"""Reports between two counts of wasted slots: a count looks at every running request."""


class Scheduler:
    """Owns every request from `add` to its last output, and the KV memory they share."""

    def __init__(self, settings: SchedulerSettings, memory: KVMemory, adaptive: AdaptiveLimits | None = None) -> None:
        self.settings = settings
        self.memory = memory
        self.adaptive = adaptive
        self.stats = SchedulerStats(kv_blocks_total=memory.blocks_total)
        self._accounts = Accounts()
        self._waiting = WaitingQueue(settings, self._accounts)
        self._requests: dict[str, RequestState] = {}
        self._forks = Forks()
        self._decoding: dict[RequestState, None] = {}
        self._prefilling: dict[RequestState, None] = {}
        self._free_rows = list(range(settings.max_num_seqs - 1, -1, -1))
        self._launched: deque[list[RequestState]] = deque()
        """The sampling requests of each plan whose results are not in yet."""
        self._next_step = 0
        self._reports = 0
        self._cost = StepCost()
        self._updated_at: float | None = None

    # Requests come and go.

    def add(self, request: Request, now: float) -> RequestState:
        """Let a request wait from `now` on; NotAdmissibleError if it would not fit even alone."""
        final_len = min(len(request.prompt_token_ids) + request.sampling.max_tokens, self.settings.max_model_len)
        self.memory.check_ever_fits(final_len)
        state = RequestState(request, now, final_len)
        self._requests[state.request_id] = state
        self._accounts.open(request.tenant, request.weight)
        if begins_as(state, self._requests.get(request.fork_of or "")):
            self._forks.add(state)
        else:
            state.fork_of = None
            self._waiting.add(state)
        return state

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> RequestOutput | None:
        """End a request now, whatever its state; None if there is no such request any more."""
        state = self._requests.get(request_id)
        return None if state is None else self._finish(state, reason)

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

    @property
    def num_running(self) -> int:
        """Requests that hold a row."""
        return len(self._decoding) + len(self._prefilling)

    def _running(self) -> Iterator[RequestState]:
        yield from self._decoding
        yield from self._prefilling

    # Planning.

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None if there is nothing to compute before a launched step's results are in."""
        self.memory.tick(now)
        if self._accounts.due(now):
            self._charge(self._running())
            self._accounts.fade(now)
        for fork in self._forks.wake(self._requests):
            fork.status = Status.WAITING
            self._waiting.add(fork, first=True)
        draft = Draft(self.settings.max_num_batched_tokens)
        self._decode(draft)
        draft.budget = min(draft.budget, self._chunk_limit())
        first, later = self._begun_prompts(now)
        kept = min(LEFTOVER, draft.budget // 2) if later else 0  # half, or a small budget would leave newcomers none
        draft.budget -= kept
        for state in first:
            if state.status is Status.RUNNING:
                self._prefill(state, draft)
        if not draft.preempted:
            # What a heavy tenant has begun goes on before it begins more.
            self._admit(draft, now, {r.tenant for r in later if self._accounts.heavy(r.tenant)})
        draft.budget += kept
        for state in later:
            # It may have been preempted meanwhile, and even been admitted again.
            if state.status is Status.RUNNING and state not in draft.chunks:
                self._prefill(state, draft)
        if draft.empty:
            return None
        self._next_step += 1
        self._launched.append(draft.sampling)
        return draft.plan(self._next_step, self.memory.take_operations())

    def _charge(self, requests: Iterable[RequestState]) -> None:
        """Let tenants pay for what was generated since they last did."""
        for state in requests:
            self._accounts.generated(state.tenant, state.num_output - state.charged)
            state.charged = state.num_output

    def _running_limit(self) -> int:
        return self.adaptive.running_limit if self.adaptive else self.settings.max_num_seqs

    def _chunk_limit(self) -> int:
        limit = self.adaptive.chunk_limit if self.adaptive else self.settings.max_num_batched_tokens
        return self._cost.tokens_within(self.settings.max_step_seconds, limit)

    def _decode(self, draft: Draft) -> None:
        """One token for every request that decodes. For most that is all: this loop is the host's cost of a step."""
        decoding, rows, starts = draft.decoding, draft.decode_rows, draft.decode_starts
        to_look_at = []
        for state in self._decoding:
            start = state.computed
            if start >= state.capacity:
                to_look_at.append(state)
                continue
            decoding.append(state)
            rows.append(state.row)
            starts.append(start)
            state.computed = start + 1
            state.in_flight += 1
        draft.budget -= len(decoding)
        for state in to_look_at:
            # All its tokens may be on their way already, or it may just have been preempted.
            if state.status is Status.RUNNING and state.known < state.final_len:
                self.memory.remember(state)
                if self._extend(state, state.computed + 1, draft):
                    draft.add_decode(state)

    def _begun_prompts(self, now: float) -> tuple[list[RequestState], list[RequestState]]:
        """The prompts that have begun: those that go on at once, and those that come after newly admitted ones.

        The second are those of heavy tenants, and those outranked by a request of a more important lane, waiting or
        begun as well, whose age and their own do not make up for that. Prompts go on ageing after their admission.
        """
        levels = self._waiting.levels(now) if self._prefilling else {}
        for state in self._prefilling:
            lane = self._waiting.importance(state)
            levels[lane] = min(levels.get(lane, lane), self._waiting.level(state, now))
        first: list[RequestState] = []
        later: list[RequestState] = []
        for state in self._prefilling:
            lane, level = self._waiting.importance(state), self._waiting.level(state, now)
            outranked = any(other < lane and its_level < level for other, its_level in levels.items())
            (later if outranked or self._accounts.heavy(state.tenant) else first).append(state)
        return first, later

    def _most(self, tenant: str, draft: Draft) -> int:
        """Prompt tokens that a tenant may still have in this step."""
        budget = self.settings.max_num_batched_tokens
        if self._accounts.heavy(tenant):
            light_tokens = sum(n for other, n in draft.prompt_tokens.items() if not self._accounts.heavy(other))
            cap = self._accounts.heavy_cap(tenant, budget, light_tokens, self._cost.doubling_tokens(budget))
        else:
            cap = self._accounts.light_cap(tenant, budget)
        return min(draft.budget, cap - draft.prompt_tokens.get(tenant, 0))

    def _prefill(self, state: RequestState, draft: Draft) -> None:
        """Plan as many of a request's tokens as there is room for, unless it must be preempted instead."""
        num_tokens = min(state.known - state.computed, self._most(state.tenant, draft))
        if num_tokens <= 0:
            return
        self.memory.remember(state)  # what earlier steps filled
        end = self.memory.stop_before(state, state.computed + num_tokens)
        if not self._extend(state, end, draft):
            return
        self._accounts.computed(state.tenant, end - state.computed)
        draft.add_chunk(state, end)
        if draft.chunks[state].samples:
            del self._prefilling[state]
            self._decoding[state] = None
            state.capacity = state.computed  # so that the next plan makes the prompt's blocks findable at once

    def _extend(self, state: RequestState, end: int, draft: Draft) -> bool:
        """Get the blocks for tokens up to `end`; False if the request was preempted itself to make room."""
        while (changes := self.memory.extend(state, end)) is None:
            candidates = [r for r in self._running() if self._preemptible(r)]
            victim = choose_victim(candidates, self._waiting.importance, self.memory.held_alone, 1)
            self._preempt(victim, draft)
            if victim is state:
                return False
        draft.changes += changes
        return True

    def _preemptible(self, state: RequestState) -> bool:
        return state.preemptions < self.settings.max_preemptions

    # Admission.

    def _admit(self, draft: Draft, now: float, sated: set[str]) -> None:
        if not self._waiting:
            return
        order = self._waiting.order(now)
        blocked: list[RequestState] = []
        while draft.budget > 0 and len(blocked) < _LOOK_AHEAD:
            state = self._waiting.next(order, blocked, sated)
            if state is None:
                return
            if self._most(state.tenant, draft) <= 0:
                sated.add(state.tenant)
            elif self._make_room(state, draft):
                for other in blocked:
                    other.passed += 1
                self._start(state, draft, now)
                if any(other.passed >= self.settings.max_skips for other in blocked):
                    return
            elif self._accounts.heavy(state.tenant):
                sated.add(state.tenant)  # it makes nobody wait; when its use has faded, it will
            elif state.passed >= self.settings.max_skips:
                return
            else:
                blocked.append(state)

    def _make_room(self, state: RequestState, draft: Draft) -> bool:
        """Open a waiting request if there are a seat and blocks for it, if need be taken from those that must yield."""
        reserve = self._accounts.reserve(state.tenant)
        seated = self.num_running < max(1, int(self._running_limit() * (1 - reserve)))
        yielding = [] if seated else self._yielding_to(state)
        if not (yielding or (seated and self._worth_trying(state))):
            return False
        shortage = self._open(state, draft)
        if seated and max(shortage) <= 0:
            return True
        self.memory.close(state)
        state.worth_trying = [have + lacks for have, lacks in zip(self.memory.available, shortage, strict=True)]
        yielding = yielding or self._yielding_to(state)
        victims = choose_victims(yielding, self._waiting.importance, self.memory.held_alone, shortage)
        for victim in victims:
            self._preempt(victim, draft)
        if victims and max(self._open(state, draft)) <= 0:
            return True
        state.turned_down = True
        self.memory.close(state)
        return False

    def _yielding_to(self, state: RequestState) -> list[RequestState]:
        """Who gives way to a waiting request. To one that was turned down, this is asked only now and then."""
        if not (self.settings.policy == "priority" or self._accounts.several):
            return []
        if state.turned_down and self._next_step % _TRY_EVERY:
            return []
        running = [r for r in self._running() if self._preemptible(r)]
        return yielding_to(state, running, self._waiting.importance, self._accounts, self._share_of)

    def _worth_trying(self, state: RequestState) -> bool:
        """Whether blocks have come back since it last failed. Now and then it is tried in any case: rules change."""
        if self.num_running == 0 or self._next_step % _TRY_EVERY == 0:
            return True
        wanted = state.worth_trying or [0] * len(self.memory.pools)
        return all(have >= want for have, want in zip(self.memory.available, wanted, strict=True))

    def _share_of(self, state: RequestState) -> float:
        """What part of the engine a request takes: of the memory or of the seats, whichever is more."""
        return max(state.known / self.memory.tokens, 1 / self.settings.max_num_seqs)

    def _open(self, state: RequestState, draft: Draft) -> list[int]:
        """Give a waiting request what is there of its beginning; the blocks of each group that it lacks then."""
        parent = self._requests.get(state.fork_of or "")
        final = not self._preemptible(state)
        # Blocks are copied before the step computes: what it computes of the parent is not there yet.
        there = draft.before(parent) if parent is not None and state.scheduled_at is None else 0
        if parent is not None and self.memory.can_fork(parent, state, there):
            self.memory.fork(parent, state, there)
        else:
            self.memory.open(state, private=final)
        spare = max(self.settings.watermark, self._accounts.reserve(state.tenant)) if self.num_running else 0.0
        return self.memory.shortage(state, state.final_len if final else state.known, spare)

    def _start(self, state: RequestState, draft: Draft, now: float) -> None:
        """Give an opened request its row and its first tokens."""
        self._waiting.take(state)
        self.memory.count_hits(state)
        self.memory.swap_in(state)
        if not self._preemptible(state):
            self.memory.promise(state)
        if state.scheduled_at is None:  # what is computed again after a preemption is no question of a client's
            state.scheduled_at = now
            state.cached = state.computed
            self.stats.prefix_queried_tokens += state.prompt_len
            self.stats.prefix_hit_tokens += state.computed
        self.stats.recomputed_tokens += max(0, state.reached - state.computed)
        state.reached = 0
        state.status = Status.RUNNING
        state.row = self._free_rows.pop()
        self._prefilling[state] = None
        draft.new_rows[state] = NewRow(
            state.row, state.request_id, tuple(state.token_ids), state.prompt_len, state.request.sampling
        )
        self._prefill(state, draft)
        draft.changes = [change for change in draft.changes if change.row != state.row]
        draft.changes += self.memory.whole_tables(state)

    # Preemption.

    def _preempt(self, victim: RequestState, draft: Draft) -> None:
        draft.drop(victim)
        draft.preempted = True
        self.stats.preemptions += 1
        victim.preemptions += 1
        victim.reached = victim.computed
        if self.memory.can_swap_out(victim) and swap_is_cheaper(
            self.memory.worth_saving(victim),
            self.settings.swap_block_seconds,
            victim.computed,
            self._cost.token_seconds,
        ):
            self.memory.swap_out(victim)
        self._release(victim)
        victim.status = Status.PREEMPTED
        self._waiting.add(victim, first=True)

    def _release(self, state: RequestState) -> None:
        """Give back a running request's row and blocks."""
        self.memory.remember(state)
        self.memory.close(state)
        self._decoding.pop(state, None)
        self._prefilling.pop(state, None)
        self._free_rows.append(state.row)
        state.row = -1

    # Results.

    def update(self, plan: StepPlan, result: StepResult, now: float) -> StepOutputs:
        """Take in the oldest launched step's results; what each request's client should hear."""
        requests = self._launched.popleft()
        outputs = StepOutputs()
        ids, tokens = outputs.request_ids, outputs.token_ids
        told_alone = {*result.logprobs, *result.errors, *range(len(plan.decode_rows), len(requests))}
        for index, (state, token) in enumerate(zip(requests, result.token_ids, strict=True)):
            state.in_flight -= 1
            known = state.token_ids
            known.append(token)
            if len(known) >= state.final_len or token in state.stop_token_ids or index in told_alone:
                if state.finish_reason is None:  # else it ended while the step was under way
                    outputs.events.append(self._take(state, index, token, result, now))
            else:
                ids.append(state.request_id)
                tokens.append(token)
        self._observe(plan, result, now)
        return outputs

    def _take(self, state: RequestState, index: int, token: int, result: StepResult, now: float) -> RequestOutput:
        """News of a request that has more to tell than one more token."""
        if (error := result.errors.get(index)) is not None:
            state.token_ids.pop()
            return self._finish(state, FinishReason.ERROR, error=error)
        if state.num_output == 1 and self.adaptive:
            self.adaptive.on_first_token(now - state.arrival)
        reason = self._finish_reason(state, token)
        logprobs = result.logprobs.get(index)
        output = self._output(state) if reason is None else self._finish(state, reason)
        return replace(output, token_ids=(token,), logprobs=(logprobs,) if logprobs else ())

    def _finish_reason(self, state: RequestState, token: int) -> FinishReason | None:
        if token in state.stop_token_ids and state.num_output > state.request.sampling.min_tokens:
            state.stop_token = token
            return FinishReason.STOP
        return FinishReason.LENGTH if len(state.token_ids) >= state.final_len else None

    def _finish(self, state: RequestState, reason: FinishReason, *, error: str | None = None) -> RequestOutput:
        if state.status is Status.RUNNING:
            self._release(state)
        elif state.status is Status.FORKING:
            self._forks.remove(state)
        else:
            self._waiting.remove(state)
        if reason is FinishReason.ERROR:
            self.memory.disown(state)
        self.memory.drop_swapped(state)
        self._charge([state])
        self._accounts.close(state.tenant)
        state.status = Status.FINISHED
        state.finish_reason = reason
        state.final_len = 0  # tokens still on their way are told to nobody
        del self._requests[state.request_id]
        return self._output(state, error)

    def _output(self, state: RequestState, error: str | None = None) -> RequestOutput:
        return RequestOutput(
            request_id=state.request_id,
            token_ids=(),
            finish_reason=state.finish_reason,
            stop_token=state.stop_token,
            cached_tokens=state.cached,
            queue_seconds=(state.scheduled_at - state.arrival) if state.scheduled_at is not None else 0.0,
            error=error,
        )

    def expected_seconds(self, plan: StepPlan) -> float:
        """How long a step will take, going by those before it; 0 while nothing is known."""
        return self._cost.expected_seconds(plan.num_tokens - len(plan.decode_rows))

    def _observe(self, plan: StepPlan, result: StepResult, now: float) -> None:
        """Learn from a step how long things take."""
        self.stats.step_seconds.append(result.seconds)
        self._cost.observe(plan.num_tokens - len(plan.decode_rows), result.seconds)
        if self.adaptive:
            if self._updated_at is not None and plan.decode_rows:
                self.adaptive.on_token_gap(now - self._updated_at, len(plan.decode_rows))
            self.adaptive.update(now)
        self._updated_at = now if self._launched or self._requests else None

    # The state.

    def report(self) -> SchedulerStats:
        """The state now; step durations are handed over once."""
        stats, memory = self.stats, self.memory
        if self._reports % _WASTE_EVERY == 0:
            stats.kv_wasted_slots = memory.wasted_slots(self._running())
        self._reports += 1
        stats.running = self.num_running
        stats.waiting = len(self._waiting)
        stats.waiting_tokens = self._waiting.tokens
        stats.kv_blocks_used, stats.kv_usage = memory.blocks_used, memory.usage
        stats.copied_blocks = memory.copied_blocks
        stats.swapped_out_blocks, stats.swapped_in_blocks = memory.swapped_out_blocks, memory.swapped_in_blocks
        stats.running_limit = self._running_limit()
        stats.chunk_limit = self._chunk_limit()
        stats.target_met = self.adaptive.target_met if self.adaptive else True
        reported = replace(stats)
        stats.step_seconds = []
        return reported

    def check_integrity(self) -> None:
        """RuntimeError unless requests, rows and blocks are all accounted for. Cheap enough for every idle moment."""
        self.memory.check_integrity(self._requests.values())
        rows = sorted([*self._free_rows, *(state.row for state in self._running())])
        if rows != list(range(self.settings.max_num_seqs)):
            raise RuntimeError("a state-table row is lost or held twice")
        if self.num_running + len(self._waiting) + len(self._forks) != len(self._requests):
            raise RuntimeError("a request is neither waiting nor running")
        self._accounts.check_integrity(len(self._requests))
        self._check_held(self._running())

    def _check_held(self, running: Iterable[RequestState]) -> None:
        for state in running:
            if state.status is not Status.RUNNING or not state.block_tables:
                raise RuntimeError(f"request {state.request_id} has a row, but no blocks")
            if state.preemptions > self.settings.max_preemptions:
                raise RuntimeError(f"request {state.request_id} was preempted too often")
