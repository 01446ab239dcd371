"""--lora-modules-file: adapters are loaded and unloaded as the file changes, and a broken one affects no other."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.cli import main
from octavo_engine.engine.client import EngineState
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.errors import ModelLoadError
from octavo_engine.server.adapter_file import AdapterFile
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.served import serve


@dataclass
class Engine:
    """Loads every path but `broken`, and notes what it was asked."""

    state: EngineState = field(default_factory=lambda: EngineState(phase="ready"))
    asked: list[str] = field(default_factory=list)

    async def load_adapter(self, name: str, path: str) -> None:
        self.asked.append(f"load {name} {path}")
        if path == "broken":
            raise ModelLoadError("broken: the adapter has rank 99, and --max-lora-rank is 16")
        warning = "it was trained on another model" if path == "foreign" else ""
        self.state.adapters[name] = AdapterInfo(name=name, path=path, digest=path, rank=8, created=7, warning=warning)

    async def unload_adapter(self, name: str) -> None:
        self.asked.append(f"unload {name}")
        del self.state.adapters[name]


class Case:
    def __init__(self, folder: Path) -> None:
        self.engine, self.now = Engine(), 0.0
        self.path = folder / "adapters.json"
        self.adapters = AdapterFile(self.path, self.engine, ("smollm2",), lambda: self.now)

    def look(self, *entries: dict[str, Any]) -> list[str]:
        """Write these entries, look at them, and return what the engine was asked."""
        self.engine.asked.clear()
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"adapters": entries}))
        new.replace(self.path)
        asyncio.run(self.adapters.update())
        return self.engine.asked

    def look_again(self) -> list[str]:
        self.engine.asked.clear()
        asyncio.run(self.adapters.update())
        return self.engine.asked

    @property
    def states(self) -> dict[str, tuple[str, str]]:
        return {each["name"]: (each["state"], each["message"]) for each in self.adapters.report()}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


SQL = {"name": "sql", "version": "1", "path": "good"}
BROKEN = {"name": "fr", "version": "1", "path": "broken"}


def test_adapters_come_and_go_with_the_file(case: Case) -> None:
    assert case.look_again() == []  # the file is not there yet
    assert case.look(SQL, {**SQL, "name": "legal"}) == ["load sql good", "load legal good"]
    assert case.states == {"sql": ("Loaded", ""), "legal": ("Loaded", "")}
    assert case.look_again() == []
    assert case.look({**SQL, "version": "2", "path": "foreign"}) == ["unload legal", "load sql foreign"]
    assert case.states == {"sql": ("Loaded", "it was trained on another model")}


def test_one_that_fails_harms_no_other_and_is_tried_again_ever_more_rarely(case: Case) -> None:
    assert case.look(BROKEN, SQL) == ["load fr broken", "load sql good"]
    assert case.states["fr"] == ("Failed", "broken: the adapter has rank 99, and --max-lora-rank is 16")
    assert case.states["sql"][0] == "Loaded"
    for pause in (5, 10, 20):
        case.now += pause - 1
        assert case.look_again() == []
        case.now += 1
        assert case.look_again() == ["load fr broken"]
    case.adapters._adapters["fr"].failures = 1100  # four days later
    for _ in range(2):
        case.now += 300
        assert case.look_again() == ["load fr broken"]
        assert case.look_again() == []
    assert case.look({**BROKEN, "version": "2", "path": "good"}, SQL) == ["load fr good"]
    assert case.states["fr"] == ("Loaded", "")


def test_weights_that_are_loaded_answer_until_others_are_there(case: Case) -> None:
    case.look(SQL)
    fetching = {"name": "sql", "version": "2", "message": "1 of 2 MiB"}
    assert case.look(fetching) == []
    assert case.states["sql"] == ("Fetching", "1 of 2 MiB; until then requests use the weights that were loaded before")
    case.look({**fetching, "failed": True, "message": "no such repository"})
    assert case.states["sql"][0] == "Failed"
    assert case.states["sql"][1].startswith("no such repository; until then")
    assert "sql" in case.engine.state.adapters
    assert case.look(SQL) == []
    assert case.states["sql"] == ("Loaded", "")


def test_names_that_are_taken_are_refused(case: Case) -> None:
    asyncio.run(case.engine.load_adapter("own", "flag"))
    assert case.look({**SQL, "name": "smollm2"}, {**SQL, "name": "own"}) == []
    assert "base model's own name" in case.states["smollm2"][1]
    assert "--lora-modules" in case.states["own"][1]
    assert case.look() == []


@pytest.mark.parametrize("text", ["", "[]", '{"adapters": [{"name": "a b"}]}', json.dumps({"adapters": [SQL, SQL]})])
def test_a_file_that_cannot_be_used_changes_nothing(case: Case, text: str) -> None:
    case.look(SQL)
    case.engine.asked.clear()
    case.path.write_text(text)
    assert case.look_again() == []
    assert case.states["sql"][0] == "Loaded"


def test_a_server_waits_for_its_first_adapters_but_not_forever_and_not_for_broken_ones(case: Case) -> None:
    case.engine.state.phase = "loading"
    assert case.look(SQL, BROKEN) == []
    assert case.adapters.is_awaited
    case.engine.state.phase = "ready"
    case.look_again()
    assert not case.adapters.is_awaited
    case.look({"name": "slow"})  # later ones are waited for by their requests alone
    assert not case.adapters.is_awaited
    assert case.adapters.is_on_its_way("slow")
    assert not case.adapters.is_on_its_way("sql")


def test_a_server_does_not_wait_longer_than_a_minute(case: Case) -> None:
    case.look({"name": "slow", "message": "1 of 9 GiB"})
    assert case.adapters.is_awaited
    case.now += 61
    assert not case.adapters.is_awaited


def test_a_server_shows_states_answers_503_for_what_comes_and_lets_no_client_change_adapters(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "adapters.json"
    entries = [SQL, BROKEN, {"name": "slow", "message": "1 of 9 GiB"}]
    path.write_text(json.dumps({"adapters": entries}))
    with serve(tokenizer, lora_modules_file=path) as served:
        served.play("Hello")
        listed = served.serving.listed_adapters
        assert listed is not None
        served.do(lambda: setattr(listed, "clock", lambda: 0.0))  # the minute of patience never ends

        def states() -> dict[str, str]:
            return {each["name"]: each["state"] for each in served.http.get("/health/adapters").json()["adapters"]}

        served.wait_until(lambda: states() == {"sql": "Loaded", "fr": "Failed", "slow": "Fetching"})
        ready = served.http.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "loading adapters")

        def ask(model: str) -> int:
            return served.http.post("/v1/completions", json={"model": model, "prompt": "Hi"}).status_code

        assert [ask(name) for name in ("sql", "smollm2", "slow", "fr")] == [200, 200, 503, 404]
        refused = served.http.post("/v1/unload_lora_adapter", json={"lora_name": "sql"})
        assert refused.status_code == 403
        assert "--lora-modules-file" in refused.json()["error"]["message"]
        path.write_text(json.dumps({"adapters": [BROKEN]}))
        served.wait_until(lambda: states() == {"fr": "Failed"})
        assert ask("sql") == 404
        served.wait_until(lambda: served.http.get("/health/ready").status_code == 200)


def test_the_flag_needs_enable_lora(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2", f"--lora-modules-file={tmp_path / 'adapters.json'}"]) == 2
    assert "--lora-modules-file needs --enable-lora" in capsys.readouterr().err
