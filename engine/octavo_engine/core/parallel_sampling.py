"""Parallel sampling (n > 1): the other choices wait until the first one's prompt is computed, then share its blocks."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.core.request_state import RequestState


def begins_as(state: RequestState, parent: RequestState | None) -> bool:
    """Return True if `parent` has not ended and `state` may share the blocks of their common prompt."""
    if parent is None or state.needs_prompt_logprobs or parent.token_ids[: state.prompt_len] != state.token_ids:
        return False
    ours, theirs = state.request, parent.request
    return (ours.tenant, ours.cache_salt, ours.adapter) == (theirs.tenant, theirs.cache_salt, theirs.adapter)


def take_ready(forks: list[RequestState], requests: Mapping[str, RequestState]) -> list[RequestState]:
    """Remove and return the forks that need not wait: their parent's prompt is computed, or their parent has ended."""
    ready = []
    for fork in forks:
        parent = requests.get(fork.fork_of or "")
        if parent is None:
            fork.fork_of = None
        if parent is None or parent.computed >= fork.prompt_len - 1:
            ready.append(fork)
    forks[:] = [fork for fork in forks if fork not in ready]
    return ready
