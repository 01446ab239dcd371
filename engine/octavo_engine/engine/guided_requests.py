"""The guided requests of an engine loop: they wait until their first mask is ready, and get masks while they run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState
from octavo_engine.errors import NotAdmissibleError
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.structured.mask_provider import MaskProvider, MaskRow

log = logging.getLogger(__name__)


class GuidedRequests:
    """The guided requests and the provider of their masks; without a provider no request is guided."""

    def __init__(self, provider: MaskProvider | None, fail: Callable[[RequestState, Exception], None]) -> None:
        """`fail` ends a request for which the provider raised an error."""
        self.provider = provider
        self._fail = fail
        self._waiting: dict[str, tuple[Request, float]] = {}

    @property
    def any_waiting(self) -> bool:
        """True if a request waits for its grammar; cheaper than `waiting`, which makes a list."""
        return bool(self._waiting)

    @property
    def waiting(self) -> Collection[Request]:
        """The requests whose masks are still being prepared, which the scheduler does not know yet."""
        return [request for request, _ in self._waiting.values()]

    def add(self, request: Request, now: float) -> bool:
        """Accept a request that arrived at `now`; return False if it has to wait for its first mask."""
        if self.provider is None:
            return True
        self.provider.add(request)
        if self._is_ready(request, self.provider):
            return True
        self._waiting[request.request_id] = request, now
        return False

    def _is_ready(self, request: Request, provider: MaskProvider) -> bool:
        """Return True if the masks of a request, and of the one whose prompt it shares, are ready."""
        return request.fork_of not in self._waiting and provider.is_ready(request.request_id)

    def take_ready(self) -> Iterator[tuple[Request, float]]:
        """Yield and remove the waiting requests whose masks are ready, each with the time of its arrival."""
        for request_id, (request, arrival) in list(self._waiting.items()):
            if self.provider is not None and self._is_ready(request, self.provider):
                del self._waiting[request_id]
                yield request, arrival

    def discard(self, request_id: str) -> bool:
        """Drop a waiting request; return False if it is not waiting."""
        return self._waiting.pop(request_id, None) is not None

    def expire(self, now: float) -> list[str]:
        """Drop the waiting requests whose timeout is over at `now`, and return their ids."""
        expired = [request_id for request_id, deadline in self._deadlines().items() if deadline <= now]
        for request_id in expired:
            del self._waiting[request_id]
        return expired

    def next_deadline(self) -> float:
        """Return the time at which the next waiting request expires; infinite if none does."""
        return min(self._deadlines().values(), default=float("inf"))

    def _deadlines(self) -> dict[str, float]:
        return {
            request_id: arrival + request.timeout
            for request_id, (request, arrival) in self._waiting.items()
            if request.timeout is not None
        }

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
        if self.provider is not None:
            self.provider.remove(request_id)

    def among(self, sampling: Iterable[RequestState]) -> list[tuple[int, RequestState]]:
        """Return the requests of a step that need a mask, each with its index among the `sampling` ones."""
        if (provider := self.provider) is None:
            return []
        return [
            (index, state)
            for index, state in enumerate(sampling)
            if state.finish_reason is None and self._guides(provider, state)
        ]

    def _guides(self, provider: MaskProvider, state: RequestState) -> bool:
        """Return True if the provider has a mask for a request. A request for which it raises fails."""
        try:
            return provider.guides(state.request_id)
        except Exception as error:
            log.exception("request %s: finding out which tokens its grammar allows failed", state.request_id)
            self._fail(state, error)
            return False

    def masks(self, guided: Sequence[tuple[int, RequestState]], drafts: Mapping[int, tuple[int, ...]]) -> Masks:
        """Return the masks of requests found by `among`; a request whose mask has an error fails.

        `drafts` are the step's draft tokens, by the same index.
        """
        if self.provider is None or not guided:
            return NO_MASKS
        rows = [
            MaskRow(state.request_id, state.token_ids[state.prompt_len :], drafts.get(index, ()))
            for index, state in guided
        ]
        found = self.provider.masks(rows)
        for row, error in found.errors.items():
            _, state = guided[row]
            if not isinstance(error, NotAdmissibleError):  # that error is reported to the client
                log.error("request %s: its grammar's next tokens cannot be computed: %s", state.request_id, error)
            self._fail(state, error)
        places = _places([index for index, _ in guided], drafts)
        lines = [(row, place) for row, of_row in enumerate(places) for place in of_row]
        kept = [line for line, (row, _) in enumerate(lines) if row not in found.errors]
        return Masks([lines[line][1] for line in kept], found.bits[kept] if found.errors else found.bits)


def _places(indices: Sequence[int], drafts: Mapping[int, tuple[int, ...]]) -> list[range]:
    """Return the sampled places of the rows with these `indices`; places of a row's drafts follow its own."""
    if not drafts:
        return [range(index, index + 1) for index in indices]
    starts = [index + sum(len(each) for row, each in drafts.items() if row < index) for index in indices]
    return [range(start, start + 1 + len(drafts.get(i, ()))) for i, start in zip(indices, starts, strict=True)]
