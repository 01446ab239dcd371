"""LoRA adapters over HTTP: vLLM's routes, which keys may use them, and adapters as `model` of requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from octavo_engine.config.server import ServerConfig
from octavo_engine.errors import ConfigurationError
from octavo_engine.server.endpoints import adapters
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served, serve

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
def served(tokenizer: Tokenizer) -> Iterator[Served]:
    with serve(tokenizer) as served:
        served.engine.state.ready = replace(READY, max_loras=2)
        served.play("Hello")
        yield served


def error_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_a_loaded_adapter_is_a_model_until_it_is_unloaded(served: Served) -> None:
    answer = served.http.post(LOAD, json={"lora_name": "sql", "lora_path": "/adapters/sql"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'sql' added successfully.")
    base, adapter = served.http.get("/v1/models").json()["data"]
    assert (base["id"], base["parent"]) == ("smollm2", None)
    served.serving.unread.total, total = 100, served.serving.unread.total
    assert served.http.get("/v1/models").json()["error"]["code"] == "answer_too_large"  # it counts until it is read
    served.serving.unread.total = total
    wanted = {"id": "sql", "object": "model", "root": "/adapters/sql", "parent": "smollm2", "max_model_len": 512}
    assert {**adapter, **wanted} == adapter
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    for path, body in (("/v1/completions", {"prompt": "Hi"}), ("/v1/chat/completions", chat)):
        assert served.http.post(path, json={**body, "model": "sql"}).json()["model"] == "sql"
        assert served.http.post(path, json={**body, "model": "smollm2"}).status_code == 200
    assert [each.adapter for each in served.engine.requests] == ["digest of /adapters/sql", ""] * 2
    assert served.http.post("/tokenize", json={"model": "sql", "prompt": "Hi"}).status_code == 200

    answer = served.http.post(UNLOAD, json={"lora_name": "sql"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'sql' removed successfully.")
    gone = served.http.post("/v1/completions", json={"model": "sql", "prompt": "Hi"})
    assert (gone.status_code, error_of(gone)["code"]) == (404, "model_not_found")
    again = served.http.post(UNLOAD, json={"lora_name": "sql"})
    assert (again.status_code, error_of(again)["param"]) == (404, "lora_name")


def test_a_name_is_replaced_only_if_the_request_says_so(served: Served) -> None:
    body = {"lora_name": "sql", "lora_path": "first"}
    assert served.http.post(LOAD, json=body).status_code == 200
    again = served.http.post(LOAD, json={**body, "lora_path": "second"})
    assert again.status_code == 400
    assert "'sql' has already been loaded" in error_of(again)["message"]
    assert served.http.post(LOAD, json={**body, "lora_path": "second", "load_inplace": True}).status_code == 200
    foreign = served.http.post(LOAD, json={"lora_name": "fr", "lora_path": "foreign"})
    assert foreign.text.endswith("added successfully.\nWarning: it was trained on another model")
    served.http.post("/v1/completions", json={"model": "sql", "prompt": "Hi"})
    assert served.engine.requests[-1].adapter == "digest of second"


def test_of_loads_of_one_name_at_once_one_succeeds(served: Served) -> None:
    def post(route: str, **body: str) -> tuple[int, str]:
        answer = served.http.post(route, json={"lora_name": "sql", **body})
        return answer.status_code, "" if answer.is_success else error_of(answer)["message"]

    with ThreadPoolExecutor(5) as pool:
        loads = [pool.submit(post, LOAD, lora_path=f"slow {n}") for n in range(4)]
        answers = sorted(load.result() for load in loads)
        assert [status for status, _ in answers] == [200, 400, 400, 400]
        assert all("'sql' has already been loaded" in message for _, message in answers[1:])
        assert post(UNLOAD)[0] == 200
    assert len(served.http.get("/v1/models").json()["data"]) == 1


def test_the_number_of_names_is_bounded_and_those_that_are_loading_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "MAX_ADAPTERS", 3)

    def load(name: str, path: str = "fine") -> Any:
        return served.http.post(LOAD, json={"lora_name": name, "lora_path": path, "load_inplace": True})

    assert load("a").status_code == load("b").status_code == 200
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda name: load(name, "slow"), "cde"))
    assert sorted(answer.status_code for answer in answers) == [200, 400, 400]
    refused = error_of(load("f"))
    assert (refused["code"], refused["param"]) == ("too_many_adapters", "lora_name")
    assert "3 adapters are loaded, and a server may have 3; unload one" in refused["message"]
    assert load("a", "another").status_code == 200
    assert served.http.post(UNLOAD, json={"lora_name": "b"}).status_code == load("f").status_code == 200
    assert load("missing", "missing").status_code == 400


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"lora_name": "x", "lora_path": "missing"}, 404, "No adapter found"),
        ({"lora_name": "x", "lora_path": "broken"}, 400, "rank 99"),
        ({"lora_name": "x", "lora_path": "killed"}, 503, "the engine ended unexpectedly"),
        ({"lora_name": "smollm2", "lora_path": "fine"}, 400, "base model's own name"),
        ({"lora_name": "x"}, 400, "lora_path is required"),
        ({"lora_path": "fine"}, 400, "lora_name is required"),
        ({"lora_name": "", "lora_path": "fine"}, 400, "lora_name"),
        ({"lora_name": "a,b", "lora_path": "fine"}, 400, "printable characters, without spaces and commas"),
        ({"lora_name": "a b", "lora_path": "fine"}, 400, "printable characters, without spaces and commas"),
        ({"lora_name": "a\0b", "lora_path": "fine"}, 400, "printable"),
        ({"lora_name": "\x1b[31mred", "lora_path": "fine"}, 400, "printable"),
        ({"lora_name": "\u202ecba", "lora_path": "fine"}, 400, "printable"),
        ({"lora_name": 5, "lora_path": "fine"}, 400, "lora_name"),
        ({"lora_name": "x", "lora_path": "p" * 70_000}, 413, "65536"),
        ([1], 400, "JSON object"),
    ],
)
def test_a_load_that_cannot_be_is_refused_and_harms_no_other(
    served: Served, body: object, status: int, words: str
) -> None:
    answer = served.http.post(LOAD, json=body)
    assert answer.status_code == status
    assert words in error_of(answer)["message"]
    assert len(served.http.get("/v1/models").json()["data"]) == 1
    assert served.http.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200


def test_a_server_without_enable_lora_says_so(tokenizer: Tokenizer) -> None:
    with serve(tokenizer) as served:
        answer = served.http.post(LOAD, json={"lora_name": "x", "lora_path": "fine"})
        assert answer.status_code == 400
        assert "--enable-lora" in error_of(answer)["message"]


def test_a_key_needs_the_right_to_change_adapters(tokenizer: Tokenizer, tmp_path: Path) -> None:
    keys = [{"name": "alice", "key": "sk-alice"}, {"name": "root", "key": "sk-root", "rights": ["adapters"]}]
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"keys": keys}))
    with serve(tokenizer, api_key_file=path) as served:
        served.engine.state.ready = replace(READY, max_loras=2)
        load, unload = (LOAD, {"lora_name": "x", "lora_path": "fine"}), (UNLOAD, {"lora_name": "x"})
        statuses = [
            served.http.post(route, json=body, headers={"Authorization": f"Bearer {key}"}).status_code
            for key in ("sk-alice", "sk-root", "sk-nobody")
            for route, body in (load, unload)
        ]
        theirs = {"x-api-key": "sk-alice", "anthropic-version": "2023-06-01"}
        refused = served.http.post(LOAD, json=load[1], headers=theirs)
    assert statuses == [403, 403, 200, 200, 401, 401]
    assert refused.json()["error"]["type"] == "permission_error"


def test_no_adapter_is_named_after_a_key(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = [{"name": "a", "key": "Qm9vCgx7"}, {"name": "root", "key": "sk-root", "rights": ["adapters"]}]
    path.write_text(json.dumps({"keys": keys}))
    with serve(tokenizer, api_key_file=path) as served:
        served.engine.state.ready = replace(READY, max_loras=2)
        served.http.headers["Authorization"] = "Bearer sk-root"
        for body in ({"lora_name": "mine-Qm9vCgx7", "lora_path": "fine"}, {"lora_name": "x", "lora_path": "/Qm9vCgx7"}):
            answer = served.http.post(LOAD, json=body)
            assert answer.status_code == 400
            assert error_of(answer)["message"].endswith("contains an API key of this server")
            assert "Qm9vCgx7" not in answer.text
        assert served.http.post(LOAD, json={"lora_name": "x", "lora_path": "fine"}).status_code == 200


def test_clients_load_only_from_allowed_sources(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name / "sql").mkdir(parents=True)
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "other" / "sql")
    (tmp_path / "mine" / "circle").symlink_to("circle")
    mine = tmp_path / "mine"
    with serve(tokenizer, lora_sources=[str(mine), "our-org", "their-org/sql", "s3://models/ours"]) as served:
        served.engine.state.ready = replace(READY, max_loras=2)

        def status(path: str) -> int:
            body = {"lora_name": "x", "lora_path": path, "load_inplace": True}
            answer = served.http.post(LOAD, json=body)
            assert answer.status_code == 200 or "--lora-sources" in error_of(answer)["message"]
            return answer.status_code

        allowed = [f"{mine}/sql", str(mine), "our-org/sql", "their-org/sql", "s3://models/ours", "s3://models/ours/sql"]
        refused = [f"{mine}/link", f"{mine}/../other/sql", f"{mine}/circle", str(tmp_path), "our-organization/sql", "."]
        refused += ["their-org/sql-2", "s3://models/ours-2", "s3://models", "s3://models/ours/../x", "tests", "a\0b"]
        refused += ["x" * 4000, "~nobody-of-this-name/x", "s3://169.254.169.254/x", "/proc/self/cwd"]
        assert [status(path) for path in allowed] == [200] * len(allowed)
        assert [status(path) for path in refused] == [403] * len(refused)


@pytest.mark.parametrize("source", ["", "adapters/a/b", "http://host/x", "s3://", "../x", "a b"])
def test_a_source_that_is_none_ends_the_start(source: str) -> None:
    with pytest.raises(ConfigurationError, match=r"--lora-sources: .* is no absolute folder"):
        ServerConfig(lora_sources=[source])


def test_metrics_name_the_adapters_that_run_and_wait(served: Served) -> None:
    served.engine.report(running_adapters=["a", "b"], waiting_adapters=["c"])
    text = served.http.get("/metrics").text
    labels = 'max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="c"'
    assert f"vllm:lora_requests_info{{{labels}}}" in text
    assert 'octavo_adapters_loaded{model_name="smollm2"} 0.0' in text


def test_loads_of_one_key_that_do_not_end_leave_room_for_those_of_others(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two loads run at once. The first key's wait for a source that does not answer until the test lets it."""
    keys = [{"name": name, "key": f"sk-{name}", "rights": ["adapters"]} for name in ("ann", "bob")]
    path = tmp_path / "keys.yaml"
    path.write_text(json.dumps({"keys": keys}))
    arrived, begun, answered = Mock(wraps=adapters._body), [], threading.Event()
    monkeypatch.setattr(adapters, "_body", arrived)
    with serve(tokenizer, api_key_file=path) as served, ThreadPoolExecutor(4) as pool:
        served.engine.state.ready = replace(READY, max_loras=2)
        load = served.engine.load_adapter

        async def slow(name: str, path: str) -> None:
            begun.append(path)
            while path == "slow" and not answered.is_set():
                await asyncio.sleep(0.01)
            await load(name, path)

        monkeypatch.setattr(served.engine, "load_adapter", slow)

        def post(key: str, name: str, path: str) -> int:
            body = {"lora_name": name, "lora_path": path}
            return served.http.post(LOAD, json=body, headers={"Authorization": f"Bearer sk-{key}"}).status_code

        waiting = [pool.submit(post, "ann", f"a{number}", "slow") for number in range(3)]
        try:
            served.wait_until(lambda: arrived.call_count == 3 and begun)
            assert post("bob", "b", "here") == 200
            assert begun == ["slow", "here"]
        finally:
            answered.set()
        assert [each.result() for each in waiting] == [200] * 3
