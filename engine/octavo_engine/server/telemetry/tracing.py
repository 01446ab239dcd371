"""The data of a request's spans, for the exporter (otlp.py); does not need OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.telemetry.trace_context import TraceContext


@dataclass(frozen=True, slots=True)
class SequenceTimes:
    """The times at which one sequence began to be computed, gave its first token, and ended, in monotonic seconds."""

    started: float
    first_token: float
    ended: float
    tokens: int
    finish_reason: str
    """stop or length; error for one that failed, abort for one whose client went away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The times and numbers of an answered request, without any of its text."""

    model: str
    n: int
    sampling: SamplingParams
    sent: float
    """When the request was sent to the engine, after it was read, rendered and tokenized (monotonic seconds)."""
    prompt_tokens: int
    cached_tokens: int
    sequences: Sequence[SequenceTimes]
    """The sequences that got a first token."""


class RequestSpan(Protocol):
    """The span of one request in a trace."""

    context: TraceContext

    def answered(self, answered: Answered) -> None:
        """Record the times and numbers of the answer."""

    def failed(self, error: str) -> None:
        """Record the error that ended an answer after it had begun."""

    def end(self, status: int) -> None:
        """End the span: the last byte has been sent. `status` is the HTTP status, 0 if there was no response."""


class Tracing(Protocol):
    """An exporter of spans."""

    def begin(self, scope: Scope) -> RequestSpan:
        """Begin the span of a request whose headers have arrived; its parent is the span in `traceparent`."""

    def close(self) -> None:
        """Send the remaining spans, if that takes no longer than a moment."""


def span_of(scope: Scope) -> RequestSpan | None:
    """Return the span of a request; None if requests are not traced."""
    span: RequestSpan | None = scope.get("state", {}).get("span")
    return span
