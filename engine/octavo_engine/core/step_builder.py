"""The step builder: a step's plan while it is made, when requests can still be removed from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from octavo_engine.core.request_state import RequestState
from octavo_engine.core.step import BlockOp, Chunk, NewRow, StepPlan, TableChange


@dataclass(slots=True)
class StepBuilder:
    """The rows of one step so far."""

    budget: int  # tokens that may still be added
    context: float = float("inf")  # tokens of contexts that the chunks may read
    new_rows: dict[RequestState, NewRow] = field(default_factory=dict)
    changes: list[TableChange] = field(default_factory=list)
    decoding: list[RequestState] = field(default_factory=list)
    decode_starts: list[int] = field(default_factory=list)  # the position of each decoding request's token
    drafts: dict[RequestState, tuple[int, ...]] = field(default_factory=dict)
    """The draft tokens of requests that decode: guesses that follow their last token."""
    chunks: dict[RequestState, Chunk] = field(default_factory=dict)
    prompt_tokens: Counter[str] = field(default_factory=Counter)  # tokens of chunks by tenant
    preempted: bool = False  # whether a running request was preempted: then no request is admitted in this step

    def add_decode(self, request: RequestState, drafts: tuple[int, ...] = ()) -> None:
        """Add a request's last token, and `drafts` after it, which count as computed only once they are accepted."""
        if drafts:
            self.drafts[request] = drafts
        self.decoding.append(request)
        self.decode_starts.append(request.computed)
        self.budget -= 1 + len(drafts)
        request.computed += 1
        request.in_flight += 1

    def add_chunk(self, request: RequestState, end: int) -> None:
        """Add the tokens of a request up to `end`."""
        chunk = Chunk(request.row, request.computed, end - request.computed, samples=end == request.known)
        self.chunks[request] = chunk
        self.budget -= chunk.num_tokens
        self.prompt_tokens[request.tenant] += chunk.num_tokens
        request.computed = end
        request.in_flight += chunk.samples

    def can_read(self, context: int) -> bool:
        """Return True if a chunk that reads `context` tokens may be added: the first may, and leaves others half."""
        starts = [chunk.start for chunk in self.chunks.values()]
        return not (context and starts) or context + min(starts[0], self.context / 2) + sum(starts[1:]) <= self.context

    def drop(self, request: RequestState) -> None:
        """Remove all that was added for a request, which is being preempted in the same step."""
        if (chunk := self.chunks.pop(request, None)) is not None:
            self.budget += chunk.num_tokens
            self.prompt_tokens[request.tenant] -= chunk.num_tokens
            request.computed = chunk.start
            request.in_flight -= chunk.samples
        elif request in self.decoding:
            index = self.decoding.index(request)
            del self.decoding[index], self.decode_starts[index]
            self.budget += 1 + len(self.drafts.pop(request, ()))
            request.computed -= 1
            request.in_flight -= 1
        self.new_rows.pop(request, None)
        self.changes = [change for change in self.changes if change.row != request.row]

    def before(self, request: RequestState) -> int:
        """Return the number of a request's tokens that were computed before this plan."""
        if (chunk := self.chunks.get(request)) is not None:
            return chunk.start
        return request.computed - (request in self.decoding)

    @property
    def empty(self) -> bool:
        """True if there is nothing to compute."""
        return not self.decoding and not self.chunks

    @property
    def sampling(self) -> list[RequestState]:
        """The requests that sample, in the order of the result's columns."""
        return self.decoding + [request for request, chunk in self.chunks.items() if chunk.samples]

    def build(self, step: int, operations: tuple[BlockOp, ...]) -> StepPlan:
        """Return the finished plan."""
        drafts = {i: self.drafts[r] for i, r in enumerate(self.decoding) if r in self.drafts} if self.drafts else {}
        new_rows, changes, chunks = tuple(self.new_rows.values()), tuple(self.changes), tuple(self.chunks.values())
        rows = [request.row for request in self.decoding]
        return StepPlan(step, new_rows, changes, operations, rows, self.decode_starts, drafts, chunks)
