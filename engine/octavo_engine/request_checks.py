"""Checks of a request's length, parameters and token ids when it arrives, so that no accepted request gets stuck."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_type_hints

from octavo_engine.errors import NotAdmissibleError
from octavo_engine.sampling_params import Range, SamplingParams


@dataclass(frozen=True, slots=True)
class _Number:
    """The constraints of a numeric field of `SamplingParams`, which its annotation declares."""

    range: Range
    whole: bool
    optional: bool


_NUMBERS = {
    name: _Number(annotation.__metadata__[0], annotation.__origin__ is not float, annotation.__origin__ == int | None)
    for name, annotation in get_type_hints(SamplingParams, include_extras=True).items()
    if hasattr(annotation, "__metadata__")
}


def check_length(prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
    """Raise NotAdmissibleError unless prompt and answer fit into the longest sequence that the engine can hold."""
    if prompt_tokens == 0:
        raise NotAdmissibleError("the prompt is empty")
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise NotAdmissibleError("max_tokens must be a whole number of at least 0")
    if prompt_tokens + max_tokens > max_model_len:
        raise NotAdmissibleError(
            f"the prompt's {prompt_tokens} tokens and max_tokens {max_tokens} are more than the {max_model_len} tokens "
            f"of context; shorten the prompt by {prompt_tokens + max_tokens - max_model_len} tokens, lower max_tokens, "
            f"or raise --max-model-len"
        )


def check_sampling(params: SamplingParams) -> None:
    """Raise NotAdmissibleError unless every parameter has its type and is within its range."""
    for name, allowed in _NUMBERS.items():
        value = getattr(params, name)
        if value is None and allowed.optional:
            continue
        low, high = allowed.range
        if not _is_number(value, whole=allowed.whole) or not low <= value <= high:
            kind = "a whole number" if allowed.whole else "a number"
            raise NotAdmissibleError(f"{name} must be {kind} from {low:,} to {high:,}, not {value!r}")
    if not isinstance(params.ignore_eos, bool):
        raise NotAdmissibleError(f"ignore_eos must be true or false, not {params.ignore_eos!r}")
    if not isinstance(params.stop_token_ids, Sequence):
        raise NotAdmissibleError(f"stop_token_ids must be token ids, not {params.stop_token_ids!r}")
    if params.grammar is not None and not isinstance(params.grammar, str):
        raise NotAdmissibleError(f"grammar must be a text, not {params.grammar!r}")
    _check_bias(params.logit_bias)
    if not isinstance(params.allowed_token_ids, Sequence):
        raise NotAdmissibleError(f"allowed_token_ids must be token ids, not {params.allowed_token_ids!r}")
    words = params.bad_words_token_ids
    if not isinstance(words, Sequence) or not all(isinstance(word, Sequence) and word for word in words):
        raise NotAdmissibleError("bad_words_token_ids must be sequences of at least one token id each")


def _check_bias(pairs: Sequence[tuple[int, float]]) -> None:
    if not isinstance(pairs, Sequence) or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise NotAdmissibleError("logit_bias must be pairs of a token id and a number")
    if not all(_is_number(bias, whole=False) and abs(bias) <= sys.float_info.max for _, bias in pairs):
        raise NotAdmissibleError("logit_bias must map token ids to finite numbers")
    tokens = [token for token, _ in pairs]
    if len({repr(token) for token in tokens}) < len(tokens):
        raise NotAdmissibleError("logit_bias names a token twice: what is added to its logit would be the sum")


def check_tokens(prompt: Sequence[int], params: SamplingParams, vocab_size: int) -> None:
    """Raise NotAdmissibleError unless every token id of the prompt and the parameters is in the vocabulary."""
    ids = _ids(prompt, params)
    # The engine checks between two steps, and long prompts have very many ids: no Python code runs for each of them.
    if set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) < vocab_size:
        return
    for token in ids:
        if not _is_number(token, whole=True) or not 0 <= token < vocab_size:
            raise NotAdmissibleError(f"token id {token!r} is outside the vocabulary of {vocab_size}")


def _ids(prompt: Sequence[int], params: SamplingParams) -> list[int]:
    words = itertools.chain.from_iterable(params.bad_words_token_ids)
    biased = (token for token, _ in params.logit_bias)
    return [*prompt, *params.stop_token_ids, *params.allowed_token_ids, *words, *biased]


def _is_number(value: object, *, whole: bool) -> bool:
    kinds = int if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)
