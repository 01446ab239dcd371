"""The numbers of tokens of a request, as OpenAI's API reports them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class PromptTokensDetails(msgspec.Struct):
    """How many of the prompt's tokens came from the prefix cache. Audio is not supported."""

    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    """How many of the answers' tokens are reasoning. Audio is not supported, and `prediction` is ignored."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    """The numbers of tokens of a request: of its prompts, of its answers, and of both."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails = msgspec.field(default_factory=CompletionTokensDetails)


UsageSoFar = Callable[[], Usage]
"""Counts the tokens until now. A stream calls it only for chunks that show the usage, as counting takes time."""
