"""GET / is a static page that reveals nothing else to a client without a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from octavo_engine.server.endpoints import playground
from tests.api.served import Served


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as Vite builds it, in place of the real one."""
    (tmp_path / "playground").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Octavo</title>")
    (tmp_path / "playground" / "main.js").write_text("export {}")
    (tmp_path.parent / "secret.txt").write_text("secret")
    read = playground.read_files
    monkeypatch.setattr(playground, "read_files", lambda: read(tmp_path))
    return tmp_path


def test_the_page_is_open_and_everything_else_still_needs_a_key(
    built: Path, start: Callable[..., Served], tmp_path_factory: pytest.TempPathFactory
) -> None:
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys.write_text("keys: [{name: one, key: sk-one}]")
    server = start(api_key_file=keys)
    page, script = server.http.get("/"), server.http.get("/playground/main.js")
    assert page.status_code == script.status_code == 200
    assert page.headers["content-type"].startswith("text/html") and "javascript" in script.headers["content-type"]
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy  # browsers then make no HTML of strings
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    again = server.http.get("/", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert server.http.head("/").headers["etag"] == page.headers["etag"]
    assert server.http.post("/").status_code == 405
    outside = [
        "/v1/models",
        "/playground",
        "/playground/",
        "/playground/other.js",
        "/index.html",
        "/playground//main.js",
    ]
    for path in (*outside, "/playground/../v1/models", "/playground/%2e%2e/%2e%2e/secret.txt"):
        answer = server.http.get(path)
        assert answer.status_code == 401 and "secret" not in answer.text.replace("secret.txt", ""), path


def test_no_playground_serves_nothing_there(built: Path, start: Callable[..., Served]) -> None:
    server = start(playground=False)
    assert server.http.get("/").status_code == 404
    assert server.http.get("/playground/main.js").status_code == 404


def test_a_page_that_was_not_built_says_how_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., Served]
) -> None:
    read = playground.read_files
    monkeypatch.setattr(playground, "read_files", lambda: read(tmp_path))
    answer = start().http.get("/")
    assert answer.status_code == 404 and "npm reached no registry" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")
