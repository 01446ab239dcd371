"""Sends spans of requests to a collector, by OpenTelemetry's SDK and OTLP over HTTP. Imported only if they are wanted.

A span has numbers and names, and no text of prompts and answers. Its attributes have the names of
https://opentelemetry.io/docs/specs/semconv/gen-ai/, those of `gen_ai.latency` vLLM's. Spans wait in the SDK's queue,
which a thread empties: if the collector is slow or cannot be reached, spans are lost, and requests are not delayed.
"""

from __future__ import annotations

import logging
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
from octavo_engine.server.telemetry.access_log import clients_trace, without_keys
from octavo_engine.server.telemetry.trace_context import TraceContext
from octavo_engine.server.telemetry.tracing import Answered, SequenceTimes

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""The operation of each path; for other paths it is the last part of the path."""
_MOST_SEQUENCES = 16
"""The most sequences of one request that have spans of their own."""
_CLOSING = 2.0
"""Seconds for the last spans to be sent while the server ends."""
_LONGEST_STATE = 512
"""Characters of a `tracestate` that is passed on, as W3C asks for; each is searched for keys."""
_TRACES_PATH = "/v1/traces"


class OtlpTracing:
    """Implements `tracing.Tracing`: sends the spans of requests to one collector."""

    def __init__(self, endpoint: str, model: str) -> None:
        """Create an exporter. `endpoint` is an http(s) URL, whose path is /v1/traces if it has none.

        `model` is the model's name in spans until the request's own is known.
        """
        # It warns of each wrong `tracestate` with its text, which clients may send at any rate, and with keys in it.
        logging.getLogger(TraceState.__module__).setLevel(logging.ERROR)
        resource = Resource.create({"service.name": "octavo-engine", "service.version": __version__})
        self._provider = TracerProvider(
            resource=resource.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_traces_url(endpoint))))
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._model = model

    def begin(self, scope: Scope) -> OtlpSpan:
        """Begin the span of a request whose headers have arrived; its parent is the span in `traceparent`."""
        headers = Headers(scope=scope)
        parent, state = clients_trace(scope), headers.get("tracestate", "")
        state = without_keys(state, scope) if len(state) <= _LONGEST_STATE else ""
        context = None if parent is None else set_span_in_context(_parent_span(parent, state))
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
                "octavo.request.id": without_keys(scope["state"]["request_id"], scope),
            },
        )
        return OtlpSpan(self._tracer, span, operation)

    def close(self) -> None:
        """Send the remaining spans, for at most _CLOSING seconds; the SDK itself would wait half a minute."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING)


class OtlpSpan:
    """Implements `tracing.RequestSpan`: the span of one request, and spans within it for the phases of its time."""

    def __init__(self, tracer: Tracer, span: Span, operation: str) -> None:
        self._tracer, self._span, self._operation = tracer, span, operation
        self._failed = False
        self._began = time.monotonic()
        self._epoch = time.time_ns() - int(self._began * 1e9)
        own = span.get_span_context()
        self.context = TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", f"{int(own.trace_flags):02x}")

    def answered(self, answered: Answered) -> None:
        """Record the times and numbers of the answer."""
        if not self._span.is_recording():
            return
        self._span.update_name(f"{self._operation} {answered.model}")
        self._span.set_attributes(_attributes(answered, self._began))
        sent = self._phase("prepare", self._began, answered.sent)
        for index, times in enumerate(answered.sequences[:_MOST_SEQUENCES]):
            self._phases_of(index, times, sent)

    def _phases_of(self, index: int, times: SequenceTimes, sent: float) -> None:
        attributes: dict[str, AttributeValue] = {"octavo.sequence.index": index}
        started = self._phase("queue", sent, max(sent, times.started), attributes)
        first = self._phase("prefill", started, times.first_token, attributes)
        with_tokens = {**attributes, "gen_ai.usage.output_tokens": times.tokens}
        self._phase("decode", first, times.ended, with_tokens)

    def _phase(
        self, name: str, began: float, ended: float, attributes: Mapping[str, AttributeValue] | None = None
    ) -> float:
        """Record a span within this one (monotonic seconds), and return its end, where the next one begins."""
        phase = self._tracer.start_span(
            name, set_span_in_context(self._span), attributes=attributes, start_time=self._at(began)
        )
        phase.end(self._at(ended))
        return ended

    def _at(self, monotonic: float) -> int:
        return self._epoch + int(monotonic * 1e9)

    def failed(self, error: str) -> None:
        """Record the error that ended an answer after it had begun."""
        self._failed = True
        self._span.set_attribute("error.type", error)
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self, status: int) -> None:
        """End the span when the last byte has been sent."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500 and not self._failed:
            self.failed(str(status))
        self._span.end(self._at(time.monotonic()))


def _attributes(answered: Answered, began: float) -> dict[str, AttributeValue]:
    """Return the attributes of a request's own span."""
    sampling, sequences = answered.sampling, answered.sequences
    attributes: dict[str, AttributeValue] = {
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
        attributes["gen_ai.response.time_to_first_chunk"] = attributes["gen_ai.latency.time_to_first_token"] = first
        attributes["gen_ai.latency.time_in_queue"] = max(0.0, min(each.started for each in sequences) - answered.sent)
        attributes["gen_ai.latency.e2e"] = max(each.ended for each in sequences) - began
    return attributes


def _parent_span(parent: TraceContext, tracestate: str) -> NonRecordingSpan:
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
