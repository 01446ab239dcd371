"""The records that the scheduler and the workers exchange: a plan goes out, a result comes back.

A worker keeps each running request in a row of its state table; a plan names rows and carries only what changed.
Prefill, a chunk of it, decode and recomputation after a preemption are all the same: some tokens of a row. Most rows of
most steps decode one token, so these cross in columns, two integers a row, and no object is made for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_engine.core.request import FinishReason
from octavo_engine.model_outputs import PromptOutput, TokenLogprobs
from octavo_engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that takes a row, for the first time or again after a preemption."""

    row: int
    request_id: str
    token_ids: tuple[int, ...]  # all its known tokens, including those sampled before a preemption
    prompt_len: int
    sampling: SamplingParams
    pooled: bool = False
    adapter: str = ""  # digest of the LoRA adapter; empty for the base model
    second_text: int = 0  # where the second text of a pair begins in its prompt


@dataclass(slots=True)  # not frozen: making a frozen one takes four times as long, and a step has many
class TableChange:
    """Blocks of a row's block table from `index` on, which replace the earlier ones."""

    row: int
    group: int
    index: int
    blocks: tuple[int, ...]


class BlockOpKind(StrEnum):
    """The operation on a block before the step's forward pass."""

    COPY = "copy"  # within the device, before a write into a block that other requests still read (copy-on-write)
    SWAP_OUT = "swap_out"  # from device block `source` to block `target` of the swap space
    SWAP_IN = "swap_in"  # from CPU memory to the device


@dataclass(frozen=True, slots=True)
class BlockOp:
    """A copy or move of one block of one KV group, in all its layers. The order of a plan's operations matters."""

    kind: BlockOpKind
    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one row: a prompt, a part of it, or tokens that are recomputed."""

    row: int
    start: int  # position of the first token computed in this step
    num_tokens: int
    samples: bool  # whether it ends at the last known token, so that its logits give the next one


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of one step, to be done in this order.

    New rows and table changes are taken in, block operations executed one after another, then one forward pass computes
    the decoding rows' tokens, each row's drafts behind its own, followed by the chunks'. The rows that sample are all
    decoding rows, then the chunks that say so; a result's columns are in this order.
    """

    step: int
    new_rows: tuple[NewRow, ...] = ()
    table_changes: tuple[TableChange, ...] = ()
    block_ops: tuple[BlockOp, ...] = ()
    decode_rows: list[int] = field(default_factory=list)  # they compute their last known token, and sample
    decode_starts: list[int] = field(default_factory=list)  # that token's position, for each of `decode_rows`
    drafts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Draft tokens by index into `decode_rows`: guesses that follow the row's token, computed and verified with it."""
    chunks: tuple[Chunk, ...] = ()

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the step's forward pass."""
        return self.num_decode_tokens + sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_decode_tokens(self) -> int:
        """The number of tokens of the decoding rows, their drafts included."""
        return len(self.decode_rows) + sum(map(len, self.drafts.values()))


RowError = tuple[FinishReason, str]
"""Why the request in a row ends without a token, and the message for its client."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of the sampling rows of one plan, in their order."""

    step: int
    token_ids: list[int]  # the first token of each sampling row; meaningless where there is an error
    more_token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Further tokens by index into `token_ids`: those after the first, of a row whose drafts were accepted."""
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    """Log probabilities by index into `token_ids`, if they were asked for: one for each of the row's tokens."""
    errors: dict[int, RowError] = field(default_factory=dict)  # by index: only these requests end
    seconds: float = 0.0
    prompts: dict[int, PromptOutput] = field(default_factory=dict)  # by index: what the row's prompt gave
    lost: dict[str, RowError] = field(default_factory=dict)
    """By id: requests of the plan that were not computed, and their ends if it is not the first time."""


@dataclass(slots=True)  # not frozen, as TableChange is not
class RequestOutput:
    """What one request's client receives after a step: new tokens, the request's end, or an error."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: str | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    queue_seconds: float = 0.0  # from arrival in the loop to the first step
    error: str | None = None
    prompt: PromptOutput | None = None  # with the first token; a second time if the request was preempted before


@dataclass(slots=True)
class StepOutputs:
    """The outputs of all requests after a step; a request is either in the two columns or in `events`."""

    request_ids: list[str] = field(default_factory=list)  # requests that got one more token and nothing else
    token_ids: list[int] = field(default_factory=list)  # those tokens
    events: list[RequestOutput] = field(default_factory=list)  # all other outputs

    def each(self) -> Iterator[RequestOutput]:
        """Yield the outputs one request at a time."""
        for request_id, token in zip(self.request_ids, self.token_ids, strict=True):
            yield RequestOutput(request_id, (token,))
        yield from self.events


@dataclass(slots=True)
class Counters:
    """Counters of the scheduler since its start."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    step_seconds: list[float] = field(default_factory=list)  # durations of steps; the reader empties the list
