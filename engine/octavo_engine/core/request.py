"""A request as the client asked it: the record that the HTTP server and `LLM` hand to the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo_engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and its options. It never changes: the scheduler keeps its own notes in `RequestState`."""

    request_id: str  # the part before its first "-" is the same for all prompts and answers of a client's request
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    priority: int = 0  # the lowest number is the most important
    tenant: str = ""  # the API key's name; tenants share the engine by their weights
    weight: float = 1.0  # the tenant's share, beside those of others
    cache_salt: str = ""  # requests of different salts share nothing in the prefix cache
    adapter: str = ""  # digest of the LoRA adapter that computes the request; empty for the base model
    timeout: float | None = None  # seconds from its arrival until FinishReason.TIMEOUT; None for no limit
    pooled: bool = False  # whether the request asks for its prompt's pooled vector
    second_text: int = 0  # where the second text of a pair begins, for models with token types; 0: there is none
    fork_of: str | None = None  # id of a request with the same beginning whose blocks this one shares (n > 1)


class FinishReason(StrEnum):
    """The reason why a request ended. The client gets an answer for the first two, an error for the others."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"
    MEMORY = "memory"  # the device had no memory for it, twice
    INVALID = "invalid"  # nothing failed in the engine: the request cannot be carried out
