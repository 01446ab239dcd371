"""What a model gives beside sampled tokens, if a request asks for it: log probabilities and pooled vectors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, of the model's own distribution (before temperature and filters)."""

    token_id: int
    logprob: float
    rank: int  # 1 for the likeliest token
    top: tuple[tuple[int, float], ...]  # the likeliest tokens with their log probabilities, likeliest first


@dataclass(frozen=True, slots=True)
class PromptOutput:
    """The outputs of a prompt itself, each only if the request asked for it."""

    logprobs: tuple[TokenLogprobs, ...] = ()  # of each prompt token but the first
    pooled: bytes = b""  # the prompt's pooled vector (embedding or class scores), float32 [hidden]
