"""What a request must satisfy before it may wait: judged once, at the door, so that nothing accepted can get stuck."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from octavo_engine.core.request import SamplingParams


class NotAdmissibleError(ValueError):
    """The request can never run as asked; the message says what would."""


LEAST_TOP_P = 1e-6
# Smallest and largest value of each number in SamplingParams. The server's own limits are narrower.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1e4),
    "top_k": (0, 1 << 31),
    "top_p": (LEAST_TOP_P, 1),
    "min_p": (0, 1),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
    "repetition_penalty": (0.01, 100),
    "min_tokens": (0, 1 << 31),
}
_WHOLE = {"top_k", "min_tokens"}
_MOST_LOGPROBS = 1000


def check_length(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """NotAdmissibleError unless prompt and answer fit into the longest sequence that the engine can hold."""
    if prompt_tokens == 0:
        raise NotAdmissibleError("the prompt is empty")
    if not isinstance(max_tokens, int) or max_tokens < 1:
        raise NotAdmissibleError("max_tokens must be a whole number of at least 1")
    if prompt_tokens + max_tokens > max_model_len:
        raise NotAdmissibleError(
            f"the prompt's {prompt_tokens} tokens and max_tokens {max_tokens} are more than the {max_model_len} tokens "
            f"of context; shorten the prompt by {prompt_tokens + max_tokens - max_model_len} tokens, lower max_tokens, "
            f"or raise --max-model-len"
        )


def check_sampling(params: SamplingParams) -> None:
    """NotAdmissibleError unless every parameter is a number within its range."""
    for name, (low, high) in _RANGES.items():
        value = getattr(params, name)
        if not _is_number(value, whole=name in _WHOLE) or not low <= value <= high:
            kind = "a whole number" if name in _WHOLE else "a number"
            raise NotAdmissibleError(f"{name} must be {kind} from {low:g} to {high:g}, not {value!r}")
    if params.seed is not None and not (_is_number(params.seed, whole=True) and abs(params.seed) < 1 << 64):
        raise NotAdmissibleError(f"seed must be a whole number of 64 bits, not {params.seed!r}")
    if params.logprobs is not None and not (
        _is_number(params.logprobs, whole=True) and 0 <= params.logprobs <= _MOST_LOGPROBS
    ):
        raise NotAdmissibleError(f"logprobs must be a whole number from 0 to {_MOST_LOGPROBS}, not {params.logprobs!r}")
    if not all(_is_number(bias, whole=False) and math.isfinite(bias) for _, bias in params.logit_bias):
        raise NotAdmissibleError("logit_bias must map token ids to finite numbers")


def check_tokens(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """NotAdmissibleError unless every token id has a logit."""
    for token in _ids(prompt, params):
        if not _is_number(token, whole=True) or not 0 <= token < vocab_size:
            raise NotAdmissibleError(f"token id {token!r} is outside the vocabulary of {vocab_size}")


def _ids(prompt: Sequence[int], params: SamplingParams) -> Iterator[int]:
    yield from prompt
    yield from params.stop_token_ids
    yield from (token for token, _ in params.logit_bias)


def _is_number(value: object, *, whole: bool) -> bool:
    kinds = int if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)
