"""W3C trace context (https://www.w3.org/TR/trace-context/): the client's trace to which a request belongs."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The trace of a request's `traceparent`, and this server's own span in it."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits: this server's span."""
    flags: str
    """2 hexadecimal digits, as the client sent them."""
    parent_id: str = ""
    """16 hexadecimal digits: the client's span; empty if it is not known."""

    @property
    def header(self) -> str:
        """The `traceparent` header of the response."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_context(traceparent: str) -> TraceContext | None:
    """Return the trace context of a request with this `traceparent`; None if the header is not valid."""
    match = _HEADER.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    known = version == "00"
    if version == "ff" or (known and more is not None) or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    return TraceContext(trace_id, secrets.token_hex(8), flags, parent_id)
