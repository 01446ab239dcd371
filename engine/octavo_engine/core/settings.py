"""The scheduler's settings: bounds of every step, and rules for the order of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Policy = Literal["fcfs", "priority"]


@dataclass(frozen=True, slots=True)
class LongContext:
    """LongRoPE's rule: sequences of more than `above` tokens have different keys, which short ones cannot share."""

    above: int
    recomputed: bool  # whether a sequence that becomes long is recomputed; if not, the prompt's length alone decides

    def applies(self, prompt_tokens: int, known_tokens: int) -> bool:
        """Return True if a request with this prompt length, and this many tokens so far, is computed as a long one."""
        return (known_tokens if self.recomputed else prompt_tokens) > self.above


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """The scheduler's bounds and rules, which stay the same for the life of the engine."""

    max_num_seqs: int  # requests that may run at once
    max_num_batched_tokens: int  # of one step; at least max_num_seqs, so that each running request gets a token
    max_model_len: int
    policy: Policy = "fcfs"  # `fcfs` ignores priorities; `priority` serves the lowest number first
    ageing_seconds: float = 30.0  # a wait of this length makes a request count as one priority level more important
    max_preemptions: int = 3  # of one request; after that it runs only with all its blocks reserved, to its end
    max_skips: int = 32  # how many requests may be admitted ahead of one that lacks free blocks
    watermark: float = 0.03  # share of the blocks that is left for running requests when a new one is admitted
    max_step_seconds: float = float("inf")  # prompts are cut so that no step takes longer, going by earlier ones
    swap_block_seconds: float = float("inf")  # time to move a block of every group to CPU memory and back
    whole_prompts: bool = False  # whether a prompt must be computed in one step; see model/configuration/
    long_context: LongContext | None = None  # None: a token's keys do not depend on how long its sequence is

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs")


@dataclass
class StepLimits:
    """Limits of a step, here the settings' bounds. `engine.adaptive_limits` adjusts them by the latencies reported."""

    running_limit: int  # requests that may run at once; a lower limit stops none that already run
    chunk_limit: int  # prefill tokens that a step may hold
    target_met: bool = True  # False while no limit can hold a latency at its target
    message: str = ""  # while `target_met` is False: which target, what was measured, what would help

    def on_first_token(self, seconds: float) -> None:
        """Record that a request's first token reached the host `seconds` after the request arrived."""

    def on_token_gap(self, seconds: float, count: int) -> None:
        """Record that `count` requests got their next token in a step, `seconds` after the token before it."""

    def update(self, now: float) -> None:
        """Adjust the limits after a step whose results came at `now`, in seconds."""
