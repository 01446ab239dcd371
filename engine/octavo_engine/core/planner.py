"""The planner fills each step with tokens: decoding requests first, then chunks of prompts, then new requests.

It assigns rows and blocks; `core.admission_policy` decides which requests come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import maxsize

from octavo_engine.core.admission_policy import AdmissionPolicy, AdmissionRound
from octavo_engine.core.fairness import FOR_NEW, LEFTOVER, QUANTUM
from octavo_engine.core.kv_groups import NO_BLOCK
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.preemption import choose_victim, choose_victims
from octavo_engine.core.request_state import RequestState, Status
from octavo_engine.core.running import RunningRequests
from octavo_engine.core.settings import SchedulerSettings, StepLimits
from octavo_engine.core.step import Counters, NewRow, TableChange
from octavo_engine.core.step_builder import StepBuilder
from octavo_engine.core.step_cost import StepCost


class Planner:
    """Plans steps over the running and the waiting requests of one scheduler."""

    def __init__(
        self, settings: SchedulerSettings, memory: KVMemory, limits: StepLimits, requests: Mapping[str, RequestState]
    ) -> None:
        """Start without requests; `requests` is the scheduler's live mapping of all requests by id."""
        self.settings = settings
        self.memory = memory
        self.limits = limits
        self.cost = StepCost()
        self.policy = AdmissionPolicy(settings, self.cost, memory.tokens)
        self.running = RunningRequests(settings.max_num_seqs)
        self._requests = requests
        self.counters = Counters()
        self._steps = 0

    @property
    def chunk_limit(self) -> int:
        """The number of prompt tokens that a step may hold now."""
        return self.cost.tokens_within(self.settings.max_step_seconds, self.limits.chunk_limit)

    def schedule(self, now: float) -> StepBuilder:
        """Plan the next step, which may be empty."""
        builder = StepBuilder(self.settings.max_num_batched_tokens, self.cost.context_limit)
        accounts = self.policy.accounts
        self._decode(builder)
        builder.budget = min(builder.budget, self.chunk_limit)
        first, later = self.policy.order_prompts(self.running.prefilling, now)
        # Tokens kept for the later prompts: half the budget at most, or a small budget would leave new requests none.
        kept = min(LEFTOVER, builder.budget // 2) if later else 0
        short = min(QUANTUM, builder.budget // 2)
        for_new = min(FOR_NEW, builder.budget // 4) if accounts.several and self.policy.waiting else 0
        builder.budget -= kept + for_new
        for state in first:
            if state.status is Status.RUNNING:
                self._prefill(state, builder)
        if not builder.preempted:
            full = builder.budget <= 0 and 4 * len(self.running.prefilling) >= self.limits.running_limit
            builder.budget += for_new
            # A heavy tenant's begun prompts go on before it begins others.
            heavy = {r.tenant for r in later if accounts.heavy(r.tenant)}
            self._admit(builder, now, heavy, longest=short if full else maxsize)
        builder.budget += kept
        for state in (*later, *first):
            # An admission may have preempted the request, and even have admitted it again.
            if state.status is Status.RUNNING and state not in builder.chunks:
                self._prefill(state, builder)
        self._steps += not builder.empty
        return builder

    def _decode(self, builder: StepBuilder) -> None:
        """Add a token of each request that decodes in its turn. This loop is most of the host's work in a step."""
        decoding, starts, to_look_at = builder.decoding, builder.decode_starts, []
        for state in self.running.in_turn(self.cost.context_limit):
            start = state.computed
            if start >= state.capacity:
                to_look_at.append(state)
                continue
            decoding.append(state)
            starts.append(start)
            state.computed = start + 1
            state.in_flight += 1
        builder.budget -= len(decoding)
        for_drafts = max(0, builder.budget - len(to_look_at)) // 2  # the other half is left to prompts
        for state in to_look_at:
            # Skip a request that was just preempted, or whose last token, or the one before its drafts, is in flight.
            all_planned = state.known >= state.final_len or (state.drafts and state.in_flight)
            if state.status is not Status.RUNNING or all_planned:
                continue
            if state.computed >= state.short_end:
                self.requeue(state)
                continue
            self.memory.cache_blocks(state)
            if state.drafts and (drafts := self._drafts_with_blocks(state, for_drafts, builder)):
                builder.add_decode(state, drafts)
                state.capacity = state.computed  # each plan looks at its tables until the result is in
                for_drafts -= len(drafts)
            elif self._extend(state, state.computed + 1, builder):
                builder.add_decode(state)

    def _drafts_with_blocks(self, state: RequestState, most: int, builder: StepBuilder) -> tuple[int, ...]:
        """Take blocks for at most `most` of a request's drafts and return those; none if that needs a preemption."""
        drafts = state.drafts[:most]
        if not drafts or (changes := self.memory.extend(state, state.computed + 1 + len(drafts))) is None:
            return ()
        builder.changes += changes
        return drafts

    def _prompt_limit(self, state: RequestState, builder: StepBuilder) -> int:
        """Return how many of a request's tokens the step may hold; a prompt that cannot be cut may be alone in one."""
        limit = min(builder.budget, self.policy.prompt_limit(state.tenant, builder.prompt_tokens, builder.budget))
        whole = max(1, state.prompt_len - state.computed)  # the tokens of a preempted answer follow one by one
        alone = not builder.chunks and len(builder.decoding) + whole <= self.settings.max_num_batched_tokens
        return whole * (alone or limit >= whole) if self.settings.whole_prompts else limit

    def _prefill(self, state: RequestState, builder: StepBuilder) -> None:
        """Plan as many of a request's tokens as there is room for, unless it must be preempted instead."""
        num_tokens = min(state.known - state.computed, self._prompt_limit(state, builder))
        if num_tokens <= 0 or not builder.can_read(state.computed):
            return
        self.memory.cache_blocks(state)  # the blocks that earlier steps filled
        end = self.memory.stop_before(state, state.computed + num_tokens)
        if not self._extend(state, end, builder):
            return
        self.policy.accounts.computed(state.tenant, end - state.computed)
        builder.add_chunk(state, end)
        if builder.chunks[state].samples:
            self.running.begin_decoding(state)
            state.capacity = state.computed  # so that the next plan makes the prompt's blocks findable at once

    def _extend(self, state: RequestState, end: int, builder: StepBuilder) -> bool:
        """Take the blocks for tokens up to `end`, preempting if need be; False if the request itself was preempted."""
        while (changes := self.memory.extend(state, end)) is None:
            candidates = [r for r in self.running if self.policy.preemptible(r)]
            victim = choose_victim(candidates, self.policy.waiting.priority, self.memory.freeable, 1)
            self.preempt(victim, builder)
            if victim is state:
                return False
        builder.changes += changes
        return True

    def _admit(self, builder: StepBuilder, now: float, over_share: set[str], longest: int) -> None:
        """Admit waiting requests while there is room, but none of the tenants in `over_share` or of a longer prompt."""
        admissions = AdmissionRound(self.policy, self.settings.max_skips, now, over_share)
        while builder.budget > 0 and (state := admissions.next()) is not None:
            if self._prompt_limit(state, builder) <= 0:
                over_share.add(state.tenant)
            elif state.prompt_len > longest and state.skipped < self.settings.max_skips:
                admissions.blocked(state, may_run=True)
            elif not self._make_room(state, builder):
                admissions.blocked(state, may_run=self._may_run(state))
            elif builder.can_read(state.computed):
                self._start(state, builder, now)
                admissions.admitted()
            else:  # its turn is in a later step
                self.memory.free(state)
                over_share.add(state.tenant)

    def _may_run(self, state: RequestState) -> bool:
        """Return True if a waiting request may run beside those that run now."""
        return len(self.running) < self.policy.accounts.most_running(state, self.limits.running_limit)

    def _make_room(self, state: RequestState, builder: StepBuilder) -> bool:
        """Give a waiting request its cached blocks if it can run (preempting if need be) or must not read yet."""
        running, unreserved = len(self.running), self.memory.unreserved
        may_run = self._may_run(state)
        yielding = [] if may_run else self.policy.yielding_to(state, self.running, self._steps)
        if not (yielding or (may_run and self.policy.worth_trying(state, unreserved, running, self._steps))):
            return False
        shortage = self._attach_cached_blocks(state, builder)
        if not builder.can_read(state.computed) or (may_run and max(shortage) <= 0):
            return True
        self.memory.free(state)
        state.blocks_wanted = [have + lacks for have, lacks in zip(self.memory.unreserved, shortage, strict=True)]
        yielding = yielding or self.policy.yielding_to(state, self.running, self._steps)
        victims = choose_victims(yielding, self.policy.waiting.priority, self.memory.freeable, shortage)
        for victim in victims:
            self.preempt(victim, builder)
        if victims and max(self._attach_cached_blocks(state, builder)) <= 0:
            return True
        state.preemption_failed = True
        self.memory.free(state)
        return False

    def _attach_cached_blocks(self, state: RequestState, builder: StepBuilder) -> list[int]:
        """Give a waiting request its parent's or the cache's blocks; return how many of each group are missing."""
        parent = self._requests.get(state.fork_of or "")
        self._note_length(state)
        last_time = not self.policy.preemptible(state)
        # Blocks are copied before the step computes, so the parent's tokens of this same step cannot be shared.
        computed = builder.before(parent) if parent is not None and state.scheduled_at is None else 0
        alike = parent is not None and parent.long_context == state.long_context
        if parent is None or not (alike and self.memory.fork(parent, state, computed)):
            self.memory.match(state, private=last_time or state.swapped is not None)
        tokens = state.final_len if last_time else state.known
        spare = max(self.settings.watermark, self.policy.accounts.reserve(state.tenant)) if self.running else 0.0
        return self.memory.shortage(state, tokens, spare)

    def _note_length(self, state: RequestState) -> None:
        """Mark a waiting request that has become a long sequence, and drop all that it computed as a short one."""
        rule = self.settings.long_context
        if rule is None or state.long_context:
            return
        state.short_end = rule.above if rule.recomputed else maxsize
        if rule.applies(state.prompt_len, state.known):
            self.memory.forget(state)
            self.memory.swap.drop(state)
            state.long_context, state.short_end, state.block_hashes = True, maxsize, []

    def _start(self, state: RequestState, builder: StepBuilder, now: float) -> None:
        """Admit a request that has its cached blocks: give it a row, and plan its first tokens."""
        self.policy.waiting.take(state)
        self.memory.count_hits(state)
        self.memory.swap.restore(state)
        if not self.policy.preemptible(state):
            self.memory.reserve(state)
        if state.scheduled_at is None:  # tokens that are computed again after a preemption are not counted as queried
            state.scheduled_at, state.cached_tokens = now, state.computed
            self.counters.prefix_queried_tokens += state.prompt_len
            self.counters.prefix_hit_tokens += state.computed
        self.counters.recomputed_tokens += max(0, state.computed_before - state.computed)
        state.computed_before = 0
        self.running.add(state)
        state.began = self._steps + 1
        request = state.request
        asked = request.sampling, request.pooled, request.adapter, request.second_text
        row = NewRow(state.row, state.request_id, tuple(state.token_ids), state.prompt_len, *asked)
        builder.new_rows[state] = row
        self._prefill(state, builder)
        builder.changes = [change for change in builder.changes if change.row != state.row]
        builder.changes += _full_tables(state)

    def preempt(self, victim: RequestState, builder: StepBuilder) -> None:
        """Take a running request's row and blocks; its computed tokens are swapped out, or computed again later."""
        builder.drop(victim)
        builder.preempted = True
        self.counters.preemptions += 1
        victim.preemptions += 1
        swap = self.memory.swap
        swap_seconds = swap.blocks_to_save(victim) * self.settings.swap_block_seconds
        seconds = victim.computed * self.cost.token_seconds  # to compute all again: what the cache will have is unknown
        if swap_seconds < seconds and swap.has_room(victim) and not victim.needs_prompt_logprobs:
            swap.save(victim)
        self.requeue(victim)

    def requeue(self, state: RequestState) -> None:
        """Take a running request's row and blocks, and queue it again ahead of its tenant's other requests."""
        state.computed_before = state.computed
        self.release(state)
        state.status = Status.REQUEUED
        self.policy.waiting.add(state, first=True)

    def release(self, state: RequestState) -> None:
        """Take a running request's row and blocks."""
        self.memory.cache_blocks(state)
        self.memory.free(state)
        self.running.remove(state)


def _full_tables(state: RequestState) -> list[TableChange]:
    """Return the changes that set all block tables of a request's new row."""
    tables = ((group, table, table.count(NO_BLOCK)) for group, table in enumerate(state.block_tables))  # all in front
    return [TableChange(state.row, group, first, tuple(table[first:])) for group, table, first in tables]
