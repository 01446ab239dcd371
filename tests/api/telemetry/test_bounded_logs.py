"""Clients that write into the log: lines are bounded in number and length, and hold no key."""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError

from octavo_engine.process_setup import logs
from octavo_engine.process_setup.logs import JSONLines
from octavo_engine.server.console.repeated_warnings import RepeatedWarnings, limit_warnings_of_clients
from octavo_engine.server.openai.batches.storage import StorageError, on_disk
from octavo_engine.server.telemetry.access_log import AccessLog, clients_trace, without_keys
from octavo_engine.server.telemetry.trace_context import trace_context
from tests.api.hostile import TEXT, raw
from tests.api.served import Served, write_keys


def test_warnings_that_clients_cause_are_bounded(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    limit_warnings_of_clients()
    for _ in range(20):
        assert raw(server, b"GET / HTTP/9.9\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert caplog.text.count("Invalid HTTP request") <= 2  # two, should 10 s go by meanwhile


async def test_warnings_about_a_full_disk_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(logging.getLogger("octavo.storage"), "filters", [])
    limit_warnings_of_clients()
    for _ in range(20):
        with pytest.raises(StorageError):
            await on_disk(write)
    assert 1 <= caplog.text.count("No space left on device") <= 2  # two, should 10 s go by meanwhile


def test_a_form_that_is_broken_writes_no_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging, "basicConfig", Mock())
    logs.set_up("text")
    with pytest.raises(MultipartParseError):
        MultipartParser(b"b").write(b"no form")
    assert not caplog.messages


def test_warnings_that_repeat_are_counted() -> None:
    now = 0.0
    repeated = RepeatedWarnings(lambda: now)

    def record(level: int = logging.WARNING) -> logging.LogRecord:
        return logging.LogRecord("x", level, "x", 1, "all %d are in use", (5,), None)

    assert [repeated.filter(record()) for _ in range(100)] == [True] + [False] * 99
    now = 10.0
    again = record()
    assert repeated.filter(again)
    assert again.getMessage() == "all 5 are in use (and 99 times more since the last such line)"
    assert repeated.filter(record(logging.ERROR))


def scope_of(path: str, raw_path: bytes) -> dict[str, Any]:
    return {
        "type": "http", "method": "GET", "path": path, "raw_path": raw_path, "client": ("10.0.0.1", 5), "headers": [],
        "state": {"hide_keys": str},
    }  # fmt: skip


def test_the_log_of_requests_is_bounded_and_says_what_it_omits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    now = 0.0
    log = AccessLog(lambda: now)
    for _ in range(10_000):
        log.write(scope_of("/x", b"/x"), 401)
    assert len(caplog.messages) == 500
    now = 1.0
    log.write(scope_of("/x", b"/x"), 401)
    assert caplog.messages[500] == "9500 requests were not logged: too many came at once"
    assert caplog.messages[501] == '10.0.0.1:5 "GET /x" 401'


def test_the_log_of_requests_holds_no_keys_and_no_line_of_a_clients_own(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start()  # of its own: after the floods of other tests lines are omitted
    for path in ("/v1/models?api_key=sk-secret123", "/v1/sk-secret123", "/a%0aERROR%20forged"):
        server.http.get(path, headers={"X-Request-Id": "r"})
    server.http.get("/health/live")
    said = [message.split(" ", 1)[1] for message in caplog.messages if '"' in message]
    assert said == [
        f'"GET {path} request_id=r' for path in ('/v1/models" 200', '/v1/sk-..." 404', '/a%0aERROR%20forged" 404')
    ]


@pytest.mark.parametrize(
    ("path", "method", "request_id"),
    [("/x%20sk-secret123", "GET", "r"), ("/%2fsk-secret123", "GET", "r"), ("/%73k%2Dsecret123", "GET", "r"),
     ("/v1/models", "sk-secret123", "r"), ("/v1/models", "GET", "sk-secret123"),
     ("/" + "x" * 190 + "sk-secret123", "GET", "r"),
     ("/v1/myCompanysSecret", "GET", "myCompanysSecret"), ("/v1/my%43ompanysSecret", "GET", "r")],
)  # fmt: skip
def test_the_log_of_requests_holds_no_key_wherever_a_client_writes_it(
    path: str, method: str, request_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    scope = scope_of(path, path.encode()) | {"method": method, "state": {"request_id": request_id, "hide_keys": str}}
    AccessLog().write(scope | {"headers": [(b"authorization", b"Bearer myCompanysSecret")]}, 404)
    [line] = caplog.messages
    assert "ecret" not in line and " 404 request_id=" in line


def test_without_the_layer_that_knows_the_keys_nothing_of_a_client_is_logged() -> None:
    scope = scope_of("/x", b"/x") | {"state": {}}
    with pytest.raises(RuntimeError, match="has not come through RequestContext"):
        without_keys("x", scope)


OTHERS = ("Qm9vCgx7oT4zq9WmQm9vCgx7", "Qm9v+gx7/T4zq9W=", "af7651916cd43dd8448eb211c80319c0", "opensesame_mykey")
"""Keys of other clients of the server: they do not begin as keys often do, and the requests do not present them."""


@pytest.mark.parametrize("key", OTHERS)
def test_no_log_holds_a_key_of_the_server_wherever_a_client_writes_it(
    start: Callable[..., Served], tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    caplog.set_level(logging.INFO)
    entries = [{"name": f"other{number}", "key": each} for number, each in enumerate(OTHERS)]
    file = tmp_path / "keys.yaml"
    file.write_text(json.dumps({"keys": [{"name": "ann", "key": "sk-ann"}, *entries]}))
    server = start(api_key_file=file)
    server.http.headers["Authorization"] = "Bearer sk-ann"
    server.http.get(f"/v1/models/{key}")
    server.http.get(f"/v1/{quote(key, safe='')}x/models")
    server.http.get("/v1/models", headers={"X-Request-Id": f"a/{key}"})
    server.http.get("/v1/models", headers={"traceparent": f"00-{key}-b7ad6b7169203331-01"})
    raw(server, f"{re.sub('[/=]', '', key)} / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    server.http.post(TEXT, json={"prompt": "x", key: 1})
    server.http.post(TEXT, json={"prompt": "x", "model": key})
    records = [record for record in caplog.records if record.name.startswith("octavo")]
    assert len([record for record in records if record.name == "octavo.access"]) == 7
    written = "\n".join(JSONLines().format(record) + record.getMessage() for record in records)
    assert all(each not in written for each in (key, quote(key, safe=""), key[:20]))


def test_no_long_text_is_searched_for_keys() -> None:
    searched: list[int] = []

    def record(text: str) -> str:
        searched.append(len(text))
        return text

    long = "x" * 30_000
    headers = [(b"traceparent", f"01-{'a' * 32}-{'b' * 16}-01-{long}".encode())]
    scope = scope_of(f"/{long}", f"/{long}".encode()) | {"method": long, "headers": headers}
    scope["state"] = {"request_id": "r", "hide_keys": record}
    assert clients_trace(scope) is not None
    AccessLog().write(scope, 404)
    assert len(searched) >= 4 and max(searched) <= 2048


def test_an_answer_that_is_cut_off_is_logged_as_such(
    start: Callable[..., Served], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start()
    server.play("one two", hold_after=1)
    asked = {"prompt": "x", "stream": True}
    with server.http.stream("POST", TEXT, json=asked, headers={"X-Request-Id": "r"}) as answer:
        next(answer.iter_lines())
    server.wait_until(lambda: len(caplog.messages) == 2)
    said = [message.split(" ", 1)[1] for message in caplog.messages]
    assert said == ['"POST /v1/completions" 200 request_id=r', '"POST /v1/completions" 200 cut off request_id=r']
    assert [json.loads(JSONLines().format(record))["cut_off"] for record in caplog.records] == [False, True]


def test_a_line_names_the_request_its_key_and_its_trace(
    start: Callable[..., Served], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "octavo.access")
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"Authorization": "Bearer sk-ann", "X-Request-Id": "mine", "traceparent": f"00-{trace}-{parent}-01"}
    answer = server.http.post("/v1/completions", json={"prompt": "my secret"}, headers=headers)
    version, trace_id, span, flags = answer.headers["traceparent"].split("-")
    assert (version, trace_id, flags) == ("00", trace, "01") and span != parent
    [line] = [record for record in caplog.records if "/v1/completions" in record.getMessage()]
    assert line.getMessage().endswith(f'"POST /v1/completions" 200 request_id=mine key=ann trace_id={trace}')
    fields = json.loads(JSONLines().format(line))
    assert fields | {"method": "POST", "path": "/v1/completions", "status": 200, "request_id": "mine", "key": "ann",
                     "trace_id": trace} == fields  # fmt: skip
    assert "secret" not in str(fields)


@pytest.mark.parametrize(
    ("header", "valid"),
    [(f"00-{'a' * 32}-{'b' * 16}-00", True), (f"01-{'a' * 32}-{'b' * 16}-00-more", True),
     (f"00-{'a' * 32}-{'b' * 16}-00-more", False), (f"ff-{'a' * 32}-{'b' * 16}-00", False),
     (f"00-{'0' * 32}-{'b' * 16}-00", False), (f"00-{'a' * 32}-{'0' * 16}-00", False), ("", False),
     (f"00-{'A' * 32}-{'b' * 16}-00", False), (f"00-{'a' * 32}-{'b' * 16}-00\n", False)],
)  # fmt: skip
def test_only_a_valid_trace_context_is_taken(header: str, valid: bool) -> None:
    assert (trace_context(header) is not None) == valid
