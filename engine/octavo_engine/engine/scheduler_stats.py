"""The scheduler's state in numbers, for metrics, logs and admission control."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo_engine.core.kv_groups.recurrent import RecurrentMemory
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import StepPlan, StepResult

_WASTE_EVERY = 16
"""Wasted slots are counted in every so many readings only, as the count visits every running request."""


@dataclass(slots=True)
class SchedulerStats:
    """The scheduler's state after a step; counters grow from the start of the process."""

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_usage: float = 0.0
    """Share of the blocks that are used, in the KV group that is fullest: there preemptions begin."""
    kv_wasted_slots: int = 0
    """Slots of used blocks that hold no token."""
    preemptions: int = 0
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption."""
    swapped_out_blocks: int = 0
    swapped_in_blocks: int = 0
    copied_blocks: int = 0
    """Blocks copied on write."""
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    draft_tokens: int = 0
    """Draft tokens of speculative decoding that steps computed."""
    accepted_tokens: int = 0
    """Draft tokens that were accepted."""
    running_limit: int = 0
    """Requests that may run at once now; the controller of --target-* adjusts it."""
    kept_slots: int = 0
    """Those of `running_limit` that only the request of a key without another one may take."""
    chunk_limit: int = 0
    """Prefill tokens that a step may hold now; the controller of --target-* adjusts it too."""
    target_met: bool = True
    """False while the controller cannot hold --target-ttft-p90 or --target-itl-p90 even at its lowest limits."""
    running_adapters: list[str] = field(default_factory=list)
    """Names of adapters that requests run with."""
    waiting_adapters: list[str] = field(default_factory=list)
    """Names of adapters that requests wait for."""
    step_seconds: list[float] = field(default_factory=list)
    """Durations of the steps since the last report."""


def wasted_slots(memory: KVMemory, holding: Iterable[RequestState]) -> int:
    """Return the number of slots of used blocks that hold no token."""
    return sum(
        max(0, len(table) * memory.block_size - state.computed)
        for state in holding
        for group, table in zip(memory.groups, state.block_tables, strict=True)
        if not isinstance(group, RecurrentMemory)  # a state has no slots for tokens
    )


MOST_UNREAD_STEPS = 10_000
"""Most durations of steps that are kept until they are read. The server reads them after far fewer steps."""


class StatsReader:
    """Reads the numbers of one scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._readings = 0
        self._wasted_slots = 0
        self._draft_tokens = self._accepted_tokens = 0

    def drop_unread(self) -> None:
        """Drop the oldest durations of steps if there are very many: a program with an LLM may never read them."""
        del self._scheduler.counters.step_seconds[:-MOST_UNREAD_STEPS]

    def count_drafts(self, plan: StepPlan, result: StepResult) -> None:
        """Count the draft tokens of a step whose result has come."""
        self._draft_tokens += sum(map(len, plan.drafts.values()))
        self._accepted_tokens += sum(map(len, result.more_token_ids.values()))

    def read(self) -> SchedulerStats:
        """Return the state now; `step_seconds` has each step's duration in one reading only."""
        scheduler = self._scheduler
        memory, counters = scheduler.memory, scheduler.counters
        if self._readings % _WASTE_EVERY == 0:
            self._wasted_slots = wasted_slots(memory, scheduler.running)
        self._readings += 1
        stats = SchedulerStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_used=memory.blocks_used,
            kv_blocks_total=memory.blocks_total,
            kv_usage=max(pool.used / pool.num_blocks for pool in memory.pools),
            kv_wasted_slots=self._wasted_slots,
            copied_blocks=memory.copied_blocks,
            swapped_out_blocks=memory.swap.blocks_out,
            swapped_in_blocks=memory.swap.blocks_in,
            running_limit=scheduler.limits.running_limit,
            kept_slots=scheduler.planner.policy.accounts.kept(scheduler.limits.running_limit),
            chunk_limit=scheduler.planner.chunk_limit,
            target_met=scheduler.limits.target_met,
            preemptions=counters.preemptions,
            recomputed_tokens=counters.recomputed_tokens,
            prefix_queried_tokens=counters.prefix_queried_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            draft_tokens=self._draft_tokens,
            accepted_tokens=self._accepted_tokens,
            step_seconds=counters.step_seconds,
        )
        counters.step_seconds = []
        return stats
