"""HTTP methods: HEAD works wherever GET does, and Allow headers list all methods of a path."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import Served, serve


@pytest.fixture(scope="module")
def with_files(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tokenizer, batch_storage=tmp_path_factory.mktemp("batches")) as served:
        yield served


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/models", "GET, HEAD"),
        ("PUT", "/v1/files", "GET, HEAD, POST"),
        ("POST", "/v1/files/x", "GET, HEAD, DELETE"),
        ("DELETE", "/v1/batches", "GET, HEAD, POST"),
        ("POST", "/version", "GET, HEAD"),
    ],
)
def test_a_method_that_a_path_does_not_take(with_files: Served, method: str, path: str, allowed: str) -> None:
    answer = with_files.http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/chat/completions/", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/x", ""),
        ("/x/", ""),
    ],
)
def test_a_wrong_base_url_is_told(with_files: Served, path: str, meant: str) -> None:
    answer = with_files.http.post(path, json={})
    assert (answer.status_code, f"it is at {meant}: the base URL" in answer.text) == (404, bool(meant))


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1/models/", "/version/", "/health/"])
def test_no_path_with_another_slash_is_redirected(with_files: Served, path: str) -> None:
    """Starlette would, to what the client's Host header says."""
    for method in ("GET", "POST") if path != "/v1/models/" else ("GET",):
        answer = with_files.http.request(method, path, headers={"Host": "elsewhere"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert f"it is at {path[:-1]}, without a slash at the end" in answer.text


def test_heads_are_those_of_gets(with_files: Served) -> None:
    file = with_files.openai().files.create(file=("in.jsonl", b"x" * 99), purpose="batch")
    for path in ("/version", "/load", "/ping", "/v1/models", "/v1/files", f"/v1/files/{file.id}",
                 f"/v1/files/{file.id}/content", "/v1/batches"):  # fmt: skip
        head, whole = with_files.http.head(path), with_files.http.get(path)
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-length", "content-type"):
            assert head.headers[name] == whole.headers[name]


def test_a_request_for_a_websocket_is_answered_by_http_and_logs_no_advice(
    with_files: Served, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert with_files.http.get("/v1/models", headers=headers).json()["object"] == "list"
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == []
