"""The running requests: those that hold a row of the workers' state table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from octavo_engine.core.request_state import RequestState, Status


class RunningRequests:
    """Rows 0..n-1, each free or held by one request, which is prefilling or decoding."""

    def __init__(self, num_rows: int) -> None:
        self.decoding: dict[RequestState, None] = {}
        self.prefilling: dict[RequestState, None] = {}
        self._num_rows = num_rows
        self._free_rows = list(range(num_rows - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.decoding) + len(self.prefilling)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self.decoding
        yield from self.prefilling

    def add(self, state: RequestState) -> None:
        """Give a request a row; it begins with prefill."""
        state.row = self._free_rows.pop()
        state.status = Status.RUNNING
        self.prefilling[state] = None

    def begin_decoding(self, state: RequestState) -> None:
        """Move a request to `decoding`: its prompt is computed, or will be once the launched steps end."""
        del self.prefilling[state]
        self.decoding[state] = None

    def remove(self, state: RequestState) -> None:
        """Take a request's row back."""
        self.decoding.pop(state, None)
        self.prefilling.pop(state, None)
        self._free_rows.append(state.row)
        state.row = -1

    def in_turn(self, context: float) -> Collection[RequestState]:
        """Return the requests that decode in a step which may read `context` tokens: all, or those whose turn it is.

        Then tenants' requests read equally much, by weight. The one that has waited for longest is among them, and
        however long it is, half of `context` is left for others.
        """
        if sum(state.computed for state in self.decoding) <= context:
            return self.decoding
        read: dict[str, float] = defaultdict(float)  # by tenant, up to each request in turn
        order: dict[RequestState, float] = {}
        taken: list[RequestState] = []
        for state in self.decoding:
            read[state.tenant] += state.computed / state.request.weight
            order[state] = read[state.tenant] if order else 0.0
        for state in sorted(order, key=order.__getitem__):
            if not taken or state.computed <= context:
                context -= state.computed if taken else min(state.computed, context / 2)
                taken.append(state)
        for state in taken:
            self.decoding[state] = self.decoding.pop(state)
        return taken

    def check_integrity(self, max_preemptions: int) -> None:
        """Raise RuntimeError unless each row is free or held once, and every request in a row may be there."""
        if sorted([*self._free_rows, *(state.row for state in self)]) != list(range(self._num_rows)):
            raise RuntimeError("a state-table row is lost or held twice")
        for state in self:
            if state.status is not Status.RUNNING or not state.block_tables:
                raise RuntimeError(f"request {state.request_id} has a row, but does not run or has no blocks")
            if state.preemptions > max_preemptions:
                raise RuntimeError(f"request {state.request_id} was preempted too often")
