"""A request as the scheduler sees it: what was asked, how far it got, what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen and when to stop. `check_sampling` judges the ranges."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy: the largest logit, the smallest token id among equals."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    min_p: float = 0.0
    """Drop tokens less likely than min_p times the likeliest."""
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    """What ends the answer. The server and `LLM` add the model's own ends, unless `ignore_eos`."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n likeliest tokens'."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a request's SamplingParams are where it says nothing: the model's own, or neutral."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, of the model's own distribution (before temperature and filters)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...]
    """The likeliest tokens with their log probabilities, likeliest first."""


class Status(Enum):
    """Where a request is.

    FORKING requests wait for another's prompt to be computed; PREEMPTED ones wait again, ahead of their tenant's
    requests that have never run.
    """

    FORKING = "forking"
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended. The first two are answers, the others are told to the client as errors."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class SwappedTokens:
    """What a preempted request left in CPU memory."""

    computed: int
    """Tokens whose keys and values are there."""
    tables: list[dict[int, int]]
    """For each KV group: place in the block table -> block of the swap space."""


@dataclass(slots=True, eq=False)
class Request:
    """A request from its arrival in the loop to its end.

    `token_ids` holds the prompt and every sampled token that has reached the host. A launched step that samples adds
    one to `in_flight` until its token arrives, so that the next step can be planned without waiting for it.
    """

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams
    arrival: float
    priority: int = 0
    """The lowest number is the most important."""
    tenant: str = ""
    """The API key's name; tenants share the engine fairly."""
    weight: float = 1.0
    """Of the tenant, against others."""
    cache_salt: str = ""
    adapter: str = ""
    """Digest of the LoRA adapter whose keys and values these are; empty for the model's own."""
    deadline: float | None = None
    fork_of: str | None = None
    """A request with the same beginning whose blocks this one shares (n > 1)."""

    prompt_len: int = field(init=False)
    final_len: int = 0
    """Prompt and longest answer; set when the scheduler takes it."""
    status: Status = Status.WAITING
    computed: int = 0
    """Tokens whose keys and values are in the cache, or will be once the launched steps end."""
    in_flight: int = 0
    capacity: int = 0
    """Tokens that can be computed before its block tables must be looked at again."""
    cached: int = 0
    """Prompt tokens that came from the prefix cache, or from a fork, when the request was first admitted."""
    row: int = -1
    """Its row in the workers' state table while it runs."""
    block_tables: list[list[int]] = field(default_factory=list)
    """One list of block ids for each KV group; empty while it holds none."""
    promises: list[int] = field(default_factory=list)
    """For each KV group the blocks that are kept for it beside those it holds; empty if none are."""
    block_hashes: list[bytes] = field(default_factory=list)
    """The prefix cache's chain over its full blocks, as far as it was needed."""
    remembered: int = 0
    """Blocks of its tables that the prefix cache was told of."""
    swapped: SwappedTokens | None = None
    preemptions: int = 0
    reached: int = 0
    """Tokens that were computed before its last preemption."""
    passed: int = 0
    """Requests that were admitted before it because its blocks were not there."""
    charged: int = 0
    """Tokens of its answer that its tenant has paid for."""
    turned_down: bool = False
    """Whether no running request gave way to it when it was first its turn."""
    worth_trying: list[int] = field(default_factory=list)
    """Available blocks of each KV group below which admitting it would fail as it did before."""
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    scheduled_at: float | None = None
    """When it first ran."""

    def __post_init__(self) -> None:
        self.prompt_len = len(self.token_ids)

    @property
    def known(self) -> int:
        """Tokens there are to compute: those on the host and those in flight."""
        return len(self.token_ids) + self.in_flight

    @property
    def num_output(self) -> int:
        """Sampled tokens that reached the host."""
        return len(self.token_ids) - self.prompt_len
