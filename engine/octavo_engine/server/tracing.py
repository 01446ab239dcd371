"""The data of a request's spans, for the exporter (otlp.py); does not need OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from starlette.types import Scope

from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.trace_context import TraceContext


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
    """The end of a request, without any of its text."""

    model: str
    n: int
    sampling: SamplingParams
    sent: float
    """The time at which the engine got it, in monotonic seconds: after it was read, rendered and tokenized."""
    prompt_tokens: int
    cached_tokens: int
    sequences: Sequence[SequenceTimes]
    """The sequences that got a first token."""


class RequestSpan(Protocol):
    """One request's part in a trace."""

    context: TraceContext

    def answered(self, answered: Answered) -> None:
        """Record what the engine did."""

    def failed(self, error: str) -> None:
        """Record why an answer ended that had begun: an error's code."""

    def end(self, status: int) -> None:
        """The last byte has been sent; `status` is HTTP's, 0 where there was none."""


class Tracing(Protocol):
    """The receiver of spans."""

    def begin(self, scope: Scope) -> RequestSpan:
        """The span of a request whose headers have come; its parent is what `traceparent` names."""

    def close(self) -> None:
        """Send what has not been sent, if that takes no longer than a moment."""


def span_of(scope: Scope) -> RequestSpan | None:
    """The span of a request, where requests are traced."""
    span: RequestSpan | None = scope.get("state", {}).get("span")
    return span
