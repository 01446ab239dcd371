"""The scheduler's notes about a request from its arrival to its end: its progress and the blocks that it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from sys import maxsize

from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.step import RequestOutput


class Status(Enum):
    """The stage that a request is in.

    FORKING requests wait for another's prompt to be computed. REQUEUED ones ran, lost their blocks (preempted, or to be
    recomputed as a long sequence) and wait again, ahead of their tenant's requests that have never run.
    """

    FORKING = "forking"
    WAITING = "waiting"
    RUNNING = "running"
    REQUEUED = "requeued"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SwappedTokens:
    """The blocks that a preempted request left in CPU memory."""

    computed: int  # tokens whose keys and values are there
    tables: list[dict[int, int]]  # for each KV group: entry of the block table -> block of the swap space


@dataclass(slots=True, eq=False)
class RequestState:
    """A request in the scheduler, from `Scheduler.add` to its last output.

    `token_ids` holds the prompt and every sampled token that has reached the host. A launched step that samples adds
    one to `in_flight` until its token arrives, so that the next step can be planned without waiting for it.
    """

    request: Request
    arrival: float  # seconds on the engine's clock
    final_len: int  # tokens of the prompt and the longest answer

    # Every step reads and writes the following fields, so they stand together in memory.
    request_id: str = field(init=False)
    token_ids: list[int] = field(init=False)
    stop_token_ids: tuple[int, ...] = field(init=False)
    computed: int = 0  # tokens whose keys and values are in the cache, or will be once the launched steps end
    in_flight: int = 0
    capacity: int = 0  # tokens that can be computed before its block tables must be looked at again
    row: int = -1  # its row in the workers' state table while it runs
    finish_reason: FinishReason | None = None

    tenant: str = field(init=False)
    prompt_len: int = field(init=False)
    deadline: float | None = field(init=False)  # seconds on the engine's clock; None without a timeout
    fork_of: str | None = field(init=False)
    """Id of the request whose blocks this one shares; None if there is no such request (any more)."""
    alone: bool = False  # whether its tenant had no other request when it came
    status: Status = Status.WAITING
    drafts: tuple[int, ...] = ()
    """Draft tokens to follow `token_ids`. A request with drafts is planned only while it has no token in flight."""
    cached_tokens: int = 0  # of its prompt, from the prefix cache or a fork, when it was first admitted
    block_tables: list[list[int]] = field(default_factory=list)  # block ids of each KV group; empty while it holds none
    snapshots: tuple[int, ...] = ()
    """Token counts for snapshots of its recurrent states: all full blocks, and those whose keys the cache knew."""
    reserved: list[int] = field(default_factory=list)  # blocks of each KV group kept for it; empty if none
    block_hashes: list[bytes] = field(default_factory=list)  # the prefix cache's chain over its full blocks, so far
    num_cached_blocks: int = 0  # full blocks of its tables that were offered to the prefix cache
    long_context: bool = False  # whether it is computed as a long sequence (`LongContext`)
    short_end: int = maxsize  # tokens after which it is recomputed as a long sequence
    swapped: SwappedTokens | None = None
    preemptions: int = 0
    began: int = 0  # the last step in which it was given a row
    lost: int = 0  # the newest step launched when it was last lost; steps up to that are the same loss
    computed_before: int = 0  # tokens that were computed before its last preemption
    skipped: int = 0  # requests that were admitted ahead of it because too few blocks were free for it
    charged: int = 0  # tokens of its answer that its tenant has paid for
    preemption_failed: bool = False  # whether no running request could be preempted for it when it was its turn
    blocks_wanted: list[int] = field(default_factory=list)  # of each KV group; with fewer, admitting it fails again
    stop_token: int | None = None
    scheduled_at: float | None = None  # when it first ran

    def __post_init__(self) -> None:
        request = self.request
        # Copies of the request's fields that every step reads.
        self.request_id = request.request_id
        self.tenant = request.tenant
        self.stop_token_ids = request.sampling.stop_token_ids if request.sampling.max_tokens else ()
        self.prompt_len = len(request.prompt_token_ids)
        self.token_ids = list(request.prompt_token_ids)
        self.deadline = None if request.timeout is None else self.arrival + request.timeout
        self.fork_of = request.fork_of

    @property
    def known(self) -> int:
        """The number of the request's tokens: those on the host and those in flight."""
        return len(self.token_ids) + self.in_flight

    @property
    def num_output(self) -> int:
        """The number of sampled tokens that reached the host."""
        return len(self.token_ids) - self.prompt_len

    @property
    def needs_prompt_logprobs(self) -> bool:
        """True until the prompt's log probabilities are given, if asked for: the prompt is computed without caches."""
        return self.request.sampling.prompt_logprobs is not None and not self.num_output

    def end_by(self, token: int) -> FinishReason | None:
        """Return why the newest token ends the answer, None if it does not. A stop token is noted in `stop_token`."""
        if token in self.stop_token_ids and self.num_output > self.request.sampling.min_tokens:
            self.stop_token = token
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.final_len else None

    def output(self, error: str | None = None) -> RequestOutput:
        """Return an output for the request's client that has no token."""
        queued = 0.0 if self.scheduled_at is None else self.scheduled_at - self.arrival
        return RequestOutput(
            self.request_id, (), (), self.finish_reason, self.stop_token, self.cached_tokens, queued, error
        )
