"""What crosses the border between deciding and computing: a plan goes out, a result comes back.

A worker keeps each running request in a row of its state table; a plan names rows and carries only what changed.
Prefill, a chunk of it, decode and recomputation after a preemption are all the same: `num_tokens` of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo_engine.core.request import SamplingParams, TokenLogprobs


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that takes a row, for the first time or again after a preemption."""

    row: int
    token_ids: tuple[int, ...]
    """All tokens known of it, answers before a preemption included."""
    prompt_len: int
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class ScheduledRow:
    """One row's share of a step."""

    request_id: str
    row: int
    start: int
    """Position of the first token computed in this step."""
    num_tokens: int
    samples: bool
    """Whether the step ends at the last known token, so that its logits give the next one."""
    new_blocks: tuple[tuple[int, ...], ...]
    """For each KV group the block ids to append to the row's block table."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All there is to compute in one step."""

    step: int
    new_rows: tuple[NewRow, ...]
    rows: tuple[ScheduledRow, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in the step's forward pass."""
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a sampling row's step gave: one token, or an error that is this request's alone."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one plan, in the order of its sampling rows."""

    step: int
    rows: tuple[RowResult, ...]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """News of one request after a step."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    """From arrival in the loop to the first step."""
    error: str | None = None


@dataclass(slots=True)
class SchedulerStats:
    """The scheduler's state after a step; counters grow from the start of the process."""

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    step_seconds: list[float] = field(default_factory=list)
    """Durations of the steps since the last report."""
