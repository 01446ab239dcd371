"""Verifying draft tokens: a draft is accepted if it is the token that would have been sampled without it.

A row's token follows from its logits, its parameters, its seed and its position alone, so tokens can be sampled at all
drafts' positions at once. As long as each sampled token equals the draft there, the logits after it were computed from
the right tokens, and the next sampled token is valid too. So answers equal those without drafts, drawn or greedy. This
is the accept-if-equal rule; rejection sampling (Leviathan et al. 2023) accepts more drafts of drawn answers, but gives
other tokens than sampling without drafts.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from octavo_engine.core.step import RowError, StepResult
from octavo_engine.model_outputs import TokenLogprobs


def accepted(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """Return how many of the `sampled` tokens are accepted, at least 1: one for each draft, and one after them."""
    for count, (token, draft) in enumerate(zip(sampled, drafts, strict=False), 1):
        if token != draft:
            return count
    return len(sampled)


def verify_drafts(places: StepResult, drafts: Mapping[int, Sequence[int]]) -> StepResult:
    """Turn a step's result by sampled places into one by rows; the places of a row's drafts follow its own.

    `drafts` are the plan's, by index of the row. A place that could not be sampled is an error only if it is its row's
    first; otherwise the row's tokens end before it, and the next step samples there again.
    """
    token_ids: list[int] = []
    more: dict[int, tuple[int, ...]] = {}
    logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
    errors: dict[int, RowError] = {}
    first = 0
    while first < len(places.token_ids):
        index = len(token_ids)
        last = first + 1 + len(drafts.get(index, ()))
        count = accepted(places.token_ids[first:last], drafts.get(index, ()))
        count = _before_errors(first, count, places.errors)
        token_ids.append(places.token_ids[first])
        if count > 1:
            more[index] = tuple(places.token_ids[first + 1 : first + count])
        if first in places.errors:
            errors[index] = places.errors[first]
        if first in places.logprobs:
            logprobs[index] = tuple(places.logprobs[place][0] for place in range(first, first + count))
        first = last
    return StepResult(places.step, token_ids, more, logprobs, errors, places.seconds)


def _before_errors(first: int, count: int, errors: Container[int]) -> int:
    """Return how many of the `count` places from `first` on precede the first failed one, at least 1."""
    return next((before for before in range(1, count) if first + before in errors), count)
