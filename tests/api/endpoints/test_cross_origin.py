"""CORS as browsers use it: no headers unless --allowed-origins names origins, and then for every response."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.cli import build_parser
from octavo_engine.config import ServerConfig
from octavo_engine.config.sources import read_server_config
from octavo_engine.errors import ConfigurationError
from tests.api.served import Served, write_keys

CHAT = "/v1/chat/completions"
ORIGIN = "https://app.example"
WISH = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


def allowed(answer: Any) -> str | None:
    found: str | None = answer.headers.get("access-control-allow-origin")
    return found


def test_without_origins_no_page_may_use_the_api(server: Served) -> None:
    assert server.http.options(CHAT, headers=WISH).status_code == 405
    answer = server.http.get("/v1/models", headers={"Origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_pages_of_a_named_origin_may(start: Callable[..., Served], tmp_path: Path) -> None:
    """A browser asks without a key, and shows errors as well: of a wrong key, of a wrong request."""
    server = start(allowed_origins=[ORIGIN], api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    wish = server.http.options(CHAT, headers=WISH)
    assert (wish.status_code, allowed(wish)) == (200, ORIGIN)
    assert {"POST", "GET", "DELETE"} <= set(wish.headers["access-control-allow-methods"].split(", "))
    assert wish.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in wish.headers
    for key, body, status in (("sk-ann", {"messages": [{"role": "user", "content": "Hi"}]}, 200), ("sk-ann", {}, 400),
                              ("sk-bob", {}, 401)):  # fmt: skip
        headers = {"Origin": ORIGIN, "Authorization": f"Bearer {key}"}
        answer = server.http.post(CHAT, json=body, headers=headers)
        assert (answer.status_code, allowed(answer)) == (status, ORIGIN)
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    other = {**WISH, "Origin": "https://other.example"}
    assert (
        server.http.options(CHAT, headers=other).status_code,
        allowed(server.http.options(CHAT, headers=other)),
    ) == (
        400,
        None,
    )
    assert allowed(server.http.get("/v1/models", headers=other)) is None
    assert server.http.options(CHAT).status_code == 401  # no browser's question


def test_methods_headers_and_credentials(start: Callable[..., Served]) -> None:
    server = start(allowed_origins=["*"], allowed_methods=["GET"], allowed_headers=["x-mine"], allow_credentials=True)
    assert server.http.options(CHAT, headers=WISH).status_code == 400
    answer = server.http.options(CHAT, headers={**WISH, "Access-Control-Request-Method": "GET"} | {
        "Access-Control-Request-Headers": "x-mine"})  # fmt: skip
    assert (answer.status_code, answer.headers["access-control-allow-credentials"]) == (200, "true")


@pytest.mark.parametrize(
    "given",
    [
        ["--allowed-origins", '["https://a", "https://b"]'],
        ["--allowed-origins=https://a", "--allowed-origins=https://b"],
    ],
)
def test_origins_are_given_one_by_one_or_as_vllm_takes_them(given: list[str]) -> None:
    config = read_server_config(build_parser().parse_args(["serve", "smollm2", *given]), {})
    assert (config.allowed_origins, config.allowed_methods) == (["https://a", "https://b"], ["*"])
    names = read_server_config(
        build_parser().parse_args(["serve", "smollm2"]), {"OCTAVO_ALLOWED_ORIGINS": json.dumps(["*"])}
    )
    assert names.allowed_origins == ["*"]


@pytest.mark.parametrize(
    "origin", ["https://a.example/", "https://A.example", "a.example", '["https://a"', "https://*.example"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--allowed-origins: no browser sends .* as its origin: "):
        ServerConfig(allowed_origins=["http://[::1]:8080", "app://localhost", "null", origin])
