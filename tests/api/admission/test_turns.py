"""The request fields that decide the order of requests: key, weight, priority, and choices that share a prompt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.core.request import Request
from tests.api.served import Served

KEYS = """keys:
- {name: boss, key: sk-boss, priority: -10, weight: 4}
- {name: batch, key: sk-batch, priority: 5, weight: 0.5}
- {name: plain, key: sk-plain}
"""


def asked(server: Served, key: str = "none", **body: Any) -> Request:
    """The request as the engine gets it."""
    server.openai(api_key=key).completions.create(model="smollm2", prompt="x", extra_body=body)
    return server.engine.requests[-1]


@pytest.fixture
def keyed(start: Callable[..., Served], tmp_path: Path) -> Served:
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    server = start(api_key_file=path, priorities=True)
    server.play("Hello")
    return server


@pytest.mark.parametrize(
    ("key", "asks", "gets"),
    [
        ("boss", {}, -10), ("boss", {"priority": 3}, 3), ("boss", {"priority": -99}, -10),
        ("batch", {}, 5), ("batch", {"priority": -99}, 5), ("batch", {"priority": 7}, 7),
        ("plain", {}, 0), ("plain", {"priority": -1}, 0), ("plain", {"priority": 1}, 1),
    ],
)  # fmt: skip
def test_no_request_has_an_earlier_turn_than_its_key_allows(
    keyed: Served, key: str, asks: dict[str, int], gets: int
) -> None:
    assert asked(keyed, f"sk-{key}", **asks).priority == gets


def test_the_engine_gets_the_tenant_of_each_request(keyed: Served) -> None:
    heard = [asked(keyed, f"sk-{key}") for key in ("boss", "batch", "plain")]
    assert [(request.tenant, request.weight) for request in heard] == [("boss", 4.0), ("batch", 0.5), ("plain", 1.0)]


def test_without_keys_anyone_may_ask_for_any_turn(start: Callable[..., Served]) -> None:
    server = start(priorities=True)
    server.play("Hello")
    assert [asked(server, priority=priority).priority for priority in (-7, 0, 7)] == [-7, 0, 7]
    assert (asked(server).priority, asked(server).tenant, asked(server).weight) == (0, "", 1.0)


@pytest.mark.parametrize("value", [1.5, "1", True, 1 << 31])
def test_a_priority_is_a_whole_number(start: Callable[..., Served], value: Any) -> None:
    server = start(priorities=True)
    answer = server.http.post("/v1/completions", json={"prompt": "x", "priority": value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")


def test_a_priority_that_would_not_act_is_refused(server: Served) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "x", "priority": 3})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_parameter")
    assert "--scheduling-policy" in answer.json()["error"]["message"]
    assert asked(server, priority=0).priority == 0


def test_choices_fork_from_the_first_of_their_prompt(server: Served) -> None:
    server.openai().completions.create(model="smollm2", prompt=["a", "b"], n=3)
    ids = [request.request_id for request in server.engine.requests]
    assert [request.fork_of for request in server.engine.requests] == [
        None, ids[0], ids[0], None, ids[3], ids[3],
    ]  # fmt: skip


def test_usage_counts_a_prompt_and_what_was_cached_of_it_once(server: Served) -> None:
    prompts: Any = [[5] * 20, [5] * 20]
    usage = server.openai().completions.create(model="smollm2", prompt=prompts, n=3).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (40, 32)  # the script says 16 of each
