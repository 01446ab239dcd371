"""Spans of requests, as a collector gets them over HTTP."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from octavo_engine.errors import ConfigurationError
from octavo_engine.server.run import _tracing
from octavo_engine.server.telemetry.otlp import OtlpTracing
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import PATIENCE, Served, serve

ASK = {"messages": [{"role": "user", "content": "Which xylophone?"}], "max_tokens": 8}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """Takes spans on 127.0.0.1. While `open` is not set, it answers nothing."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.asked.set()
                outer.open.wait()
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.requests.append((self.path, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    @property
    def spans(self) -> list[Span]:
        exports = [ExportTraceServiceRequest.FromString(body) for _, body in self.requests]
        return [
            span for export in exports for each in export.resource_spans for s in each.scope_spans for span in s.spans
        ]

    def of(self, trace: str) -> list[Span]:
        """The spans of a trace in the order in which they began, those of one time by their ends.

        An exporter that waited too long for an answer sends its spans again: each counts once.
        """
        found = {span.span_id: span for span in self.spans if span.trace_id.hex() == trace}
        return sorted(found.values(), key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano))


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    thread = threading.Thread(target=collector.http.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.open.set()
        collector.http.shutdown()
        collector.http.server_close()
        thread.join()


@pytest.fixture(scope="module")
def traced(tokenizer: Tokenizer) -> Iterator[tuple[Served, Collector]]:
    with collecting() as collector, pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        patched.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        tracing = OtlpTracing(collector.url, "smollm2")
        with serve(tokenizer, tracing=tracing) as served:
            yield served, collector
        tracing.close()


def trace_of(answer: httpx2.Response) -> tuple[str, str, str]:
    version, trace, span, flags = answer.headers["traceparent"].split("-")
    assert version == "00"
    return trace, span, flags


def attributes(span: Span) -> dict[str, Any]:
    def value(each: Any) -> Any:
        kind = each.WhichOneof("value")
        return [value(item) for item in each.array_value.values] if kind == "array_value" else getattr(each, kind)

    return {each.key: value(each.value) for each in span.attributes}


@pytest.mark.parametrize("state", ["no pair but sk-abcdefgh", ",".join(f"a{n}=1" for n in range(99))])
def test_a_wrong_tracestate_is_not_logged(
    traced: tuple[Served, Collector], state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK logged the whole header, of every request, before its API key was checked."""
    served, _ = traced
    headers = {"traceparent": f"00-{TRACE[::-1]}-{PARENT}-01", "tracestate": state}
    assert served.http.post("/v1/chat/completions", json={}, headers=headers).status_code == 400
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_trace_that_has_an_api_keys_digits_is_not_continued(tokenizer: Tokenizer, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(
        f"keys:\n- {{name: ann, key: sk-ann}}\n- {{name: ben, key: {TRACE}}}\n- {{name: c, key: Qm9vCgx7}}\n"
    )
    with collecting() as collector, pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        tracing = OtlpTracing(collector.url, "smollm2")
        with serve(tokenizer, tracing=tracing, api_key_file=keys) as served:
            served.http.headers["Authorization"] = "Bearer sk-ann"
            for trace in (TRACE, TRACE[::-1]):
                headers = {"traceparent": f"00-{trace}-{PARENT}-01", "tracestate": "a=Qm9vCgx7,b=1"}
                served.http.post("/v1/chat/completions", json={}, headers=headers)
            served.wait_until(lambda: len(collector.spans) == 2)
        tracing.close()
        [other] = [span for span in collector.spans if span.trace_id.hex() != TRACE[::-1]]
        [own] = collector.of(TRACE[::-1])
    assert other.trace_id.hex() != TRACE and not other.trace_state
    assert own.trace_state == "a=...,b=1"


def test_a_request_in_its_clients_trace(traced: tuple[Served, Collector]) -> None:
    served, collector = traced
    served.play("Yellow ones.", queue_seconds=0.0)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1", "x-request-id": "mine-sk-abcdefgh"}
    answer = served.http.post("/v1/chat/completions", json=ASK, headers=headers)
    trace, own, flags = trace_of(answer)
    assert (trace, flags) == (TRACE, "01") and own != PARENT
    served.wait_until(lambda: len(collector.of(TRACE)) == 5)
    request, *parts = collector.of(TRACE)
    assert (request.name, request.kind) == ("chat smollm2", Span.SPAN_KIND_SERVER)
    assert (request.parent_span_id.hex(), request.span_id.hex(), request.trace_state) == (PARENT, own, "vendor=1")
    assert sorted(part.name for part in parts) == ["decode", "prefill", "prepare", "queue"]
    assert all(part.parent_span_id == request.span_id for part in parts)
    times = {part.name: (part.start_time_unix_nano, part.end_time_unix_nano) for part in parts}
    order = [times[name] for name in ("prepare", "queue", "prefill", "decode")]
    assert all(first[1] == second[0] for first, second in pairwise(order))
    assert request.start_time_unix_nano <= order[0][0] and order[-1][1] <= request.end_time_unix_nano
    found, usage = attributes(request), answer.json()["usage"]
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "smollm2",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.request.choice.count": 1,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        "gen_ai.response.finish_reasons": ["stop"],
        "http.response.status_code": 200,
        "octavo.request.id": "mine-sk-...",  # no key leaves the server
    }
    assert {name: found[name] for name in expected} == expected
    assert found["gen_ai.latency.time_to_first_token"] > 0
    assert {path for path, _ in collector.requests} == {"/v1/traces"}
    bodies = b"".join(body for _, body in collector.requests)
    assert b"octavo-engine" in bodies and b"deployment.environment.name" in bodies
    assert b"xylophone" not in bodies and b"Yellow" not in bodies


def test_a_request_without_a_trace_begins_one(traced: tuple[Served, Collector]) -> None:
    served, collector = traced
    served.play("Yes.")
    trace, own, _ = trace_of(served.http.post("/v1/completions", json={"prompt": "Why?", "n": 2, "stream": True}))
    served.wait_until(lambda: len(collector.of(trace)) == 8)
    request, *parts = collector.of(trace)
    assert (request.name, request.span_id.hex(), request.parent_span_id) == ("text_completion smollm2", own, b"")
    assert [part.name for part in parts].count("decode") == 2
    assert {attributes(part).get("octavo.sequence.index") for part in parts} == {None, 0, 1}


def test_a_trace_that_is_not_sampled_is_passed_on_and_not_sent(traced: tuple[Served, Collector]) -> None:
    served, collector = traced
    silent = "1" * 32
    answer = served.http.post(
        "/v1/embeddings", json={"input": "a"}, headers={"traceparent": f"00-{silent}-{PARENT}-00"}
    )
    assert (trace_of(answer)[0], trace_of(answer)[2]) == (silent, "00")
    trace, _, _ = trace_of(served.http.post("/v1/embeddings", json={"input": "a"}))
    served.wait_until(lambda: collector.of(trace))
    assert collector.of(silent) == []


def test_requests_that_fail(traced: tuple[Served, Collector]) -> None:
    served, collector = traced
    refused, _, _ = trace_of(served.http.post("/v1/chat/completions", json={}))
    served.play("Half of", finish="error")
    failed, _, _ = trace_of(served.http.post("/v1/chat/completions", json={**ASK, "stream": True}))
    served.wait_until(lambda: collector.of(refused) and len(collector.of(failed)) == 5)
    [refusal] = collector.of(refused)
    assert (attributes(refusal)["http.response.status_code"], refusal.status.code) == (400, Status.STATUS_CODE_UNSET)
    failure = collector.of(failed)[0]
    assert (attributes(failure)["error.type"], failure.status.code) == ("error", Status.STATUS_CODE_ERROR)


def test_other_requests_have_no_span(traced: tuple[Served, Collector]) -> None:
    served, _ = traced
    assert "traceparent" not in served.http.get("/v1/models").headers


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "is away"])
def test_a_collector_that_does_not_answer_costs_spans_alone(
    tokenizer: Tokenizer, hangs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr("octavo_engine.server.telemetry.otlp._CLOSING", 0.1)
    with collecting() as collector:
        collector.open.clear()
        tracing = OtlpTracing(collector.url if hangs else "http://127.0.0.1:9", "smollm2")
        with serve(tokenizer, tracing=tracing) as served:
            served.play("Yes.")
            for number in range(20):  # five times as many spans as the queue holds are made here
                assert served.http.post("/v1/chat/completions", json=ASK).status_code == 200
                assert number or not hangs or collector.asked.wait(PATIENCE)
        tracing.close()  # returns although the collector holds the last batch
        assert collector.requests == []


@pytest.mark.parametrize("url", ["collector:4317", "grpc://collector:4317", "http://"])
def test_what_is_no_url_of_a_collector_is_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="--otlp-traces-endpoint"):
        _tracing(url, "smollm2")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "octavo_engine.server.telemetry.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigurationError, match="pip install opentelemetry-sdk"):
        _tracing("http://collector:4318", "smollm2")
