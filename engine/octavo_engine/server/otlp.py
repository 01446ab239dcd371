"""Spans of requests, sent to a collector by OpenTelemetry's SDK, with OTLP over HTTP. Imported only if asked for.

A span is made of numbers and names alone; no text of prompts and answers is in it. Its names are those of
https://opentelemetry.io/docs/specs/semconv/gen-ai/, and those of `gen_ai.latency` are vLLM's. Spans wait in the SDK's
queue, which a thread empties: a collector that is slow, or away, costs spans and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue
from starlette.datastructures import Headers
from starlette.types import Scope

from octavo_engine import __version__
from octavo_engine.errors import ConfigurationError
from octavo_engine.server.trace_context import TraceContext, trace_context
from octavo_engine.server.tracing import Answered, SequenceTimes

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""The operation of each path; that of others is the last part of their path."""
_MOST_SEQUENCES = 16
"""Sequences of one request that have spans of their own."""
_CLOSING = 2.0
"""Seconds in which the last spans can still be sent while the server ends."""
_TRACES_PATH = "/v1/traces"


class OtlpTracing:
    """Sends the spans of requests to one collector; `tracing.Tracing`."""

    def __init__(self, endpoint: str, model: str) -> None:
        """`endpoint` is an http(s) URL, /v1/traces where it names no path; `model` the name in spans without one."""
        resource = Resource.create({"service.name": "octavo-engine", "service.version": __version__})
        self._provider = TracerProvider(
            resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(endpoint))))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._model = model

    def begin(self, scope: Scope) -> OtlpSpan:
        """The span of a request whose headers have come; its parent is what `traceparent` names."""
        headers = Headers(scope=scope)
        parent = trace_context(headers.get("traceparent", ""))
        context = None if parent is None else set_span_in_context(_remote(parent, headers.get("tracestate", "")))
        operation = _OPERATIONS.get(scope["path"]) or scope["path"].rpartition("/")[2]
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context,
            kind=SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "octavo",
                "gen_ai.request.model": self._model,
                "http.request.method": scope["method"],
                "url.path": scope["path"],
                "octavo.request.id": scope["state"]["request_id"],
            },
        )
        return OtlpSpan(self._tracer, span, operation)

    def close(self) -> None:
        """Send what has not been sent. The SDK itself would wait half a minute for a collector that hangs."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING)


class OtlpSpan:
    """One request's span (`tracing.RequestSpan`), with spans within it for the parts of its time."""

    def __init__(self, tracer: Tracer, span: Span, operation: str) -> None:
        self._tracer, self._span, self._operation = tracer, span, operation
        self._failed = False
        self._began = time.monotonic()
        self._epoch = time.time_ns() - int(self._began * 1e9)
        own = span.get_span_context()
        self.context = TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", f"{int(own.trace_flags):02x}")

    def answered(self, answered: Answered) -> None:
        """Record what the engine did."""
        if not self._span.is_recording():
            return
        self._span.update_name(f"{self._operation} {answered.model}")
        self._span.set_attributes(_attributes(answered, self._began))
        within = self._part("prepare", self._began, answered.sent)
        for index, times in enumerate(answered.sequences[:_MOST_SEQUENCES]):
            self._sequence(index, times, within)

    def _sequence(self, index: int, times: SequenceTimes, sent: float) -> None:
        named: dict[str, AttributeValue] = {"octavo.sequence.index": index}
        started = self._part("queue", sent, max(sent, times.started), named)
        first = self._part("prefill", started, times.first_token, named)
        decoded = {**named, "gen_ai.usage.output_tokens": times.tokens}
        self._part("decode", first, times.ended, decoded)

    def _part(
        self, name: str, began: float, ended: float, attributes: Mapping[str, AttributeValue] | None = None
    ) -> float:
        """A span within this one, with monotonic seconds; its end, where the next one begins."""
        part = self._tracer.start_span(
            name, set_span_in_context(self._span), attributes=attributes, start_time=self._at(began)
        )
        part.end(self._at(ended))
        return ended

    def _at(self, monotonic: float) -> int:
        return self._epoch + int(monotonic * 1e9)

    def failed(self, error: str) -> None:
        """Record why an answer ended that had begun."""
        self._failed = True
        self._span.set_attribute("error.type", error)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, status: int) -> None:
        """End the span: the last byte has been sent."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500 and not self._failed:
            self.failed(str(status))
        self._span.end(self._at(time.monotonic()))


def _attributes(answered: Answered, began: float) -> dict[str, AttributeValue]:
    """Return the attributes of a request's own span."""
    sampling, sequences = answered.sampling, answered.sequences
    found: dict[str, AttributeValue] = {
        "gen_ai.request.model": answered.model,
        "gen_ai.response.model": answered.model,
        "gen_ai.request.choice.count": answered.n,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.usage.input_tokens": answered.prompt_tokens,
        "gen_ai.usage.output_tokens": sum(each.tokens for each in sequences),
        "gen_ai.usage.cache_read.input_tokens": answered.cached_tokens,
        "gen_ai.response.finish_reasons": [each.finish_reason for each in sequences],
    }
    if sequences:
        first = min(each.first_token for each in sequences) - began
        found["gen_ai.response.time_to_first_chunk"] = found["gen_ai.latency.time_to_first_token"] = first
        found["gen_ai.latency.time_in_queue"] = max(0.0, min(each.started for each in sequences) - answered.sent)
        found["gen_ai.latency.e2e"] = max(each.ended for each in sequences) - began
    return found


def _remote(parent: TraceContext, tracestate: str) -> NonRecordingSpan:
    flags = TraceFlags(int(parent.flags, 16) & TraceFlags.SAMPLED)
    state = TraceState.from_header([tracestate]) if tracestate else None
    own = SpanContext(int(parent.trace_id, 16), int(parent.parent_id, 16), True, flags, state)
    return NonRecordingSpan(own)


def _traces_url(endpoint: str) -> str:
    """Return the URL of the collector's traces; ConfigurationError if `endpoint` is not an http(s) URL."""
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        message = f"--otlp-traces-endpoint: {endpoint!r} must be a URL of OTLP over HTTP, such as http://collector:4318"
        raise ConfigurationError(message)
    if os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")) == "grpc":
        message = (
            "--otlp-traces-endpoint: traces are sent over HTTP (http/protobuf); OTEL_EXPORTER_OTLP_PROTOCOL is grpc"
        )
        raise ConfigurationError(message)
    return endpoint if parts.path.strip("/") else f"{endpoint.rstrip('/')}{_TRACES_PATH}"
