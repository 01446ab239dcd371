"""`octavo-engine adapters`: what it fetches, how often, with which credentials, and what it tells the engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.cli import main
from octavo_engine.commands.adapters import Fetcher, Running, Wanted, pull_process


class Pretended(Running):
    """A process that ends when the test says so."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.words, self.found, self.killed = "", "", False

    def ended(self) -> int | None:
        return self.code

    def last_message(self) -> str:
        return self.words

    def place(self) -> str:
        return self.found

    def kill(self) -> None:
        self.killed = True

    def ends(self, code: int = 0, words: str = "", place: str = "") -> None:
        self.code, self.words, self.found = code, words, place


@dataclass
class Pod:
    """A list, the file for the engine, and the processes that were started by adapters' names."""

    folder: Path
    started: list[tuple[str, Pretended, Mapping[str, str]]] = field(default_factory=list)
    now: float = 0.0

    def fetcher(self) -> Fetcher:
        return Fetcher(self.folder / "list", self.folder / "out", self.folder, self.start, lambda: self.now)

    def start(self, wanted: Wanted, environment: Mapping[str, str]) -> Running:
        self.started.append((wanted.name, Pretended(), environment))
        return self.started[-1][1]

    def wants(self, *adapters: dict[str, Any]) -> None:
        (self.folder / "list").write_text(json.dumps({"adapters": adapters}))

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in json.loads((self.folder / "out").read_text())["adapters"]}


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


SQL = {"name": "sql", "version": "1", "source": "owner/sql"}


def test_what_is_fetched_is_shown_and_what_is_there_needs_no_process(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants(SQL, {"name": "here", "version": "1", "path": "/adapters/here"})
    fetcher.step()
    assert pod.entries["here"] == {"name": "here", "version": "1", "path": "/adapters/here"}
    ((name, process, _),) = pod.started
    assert name == "sql"
    process.words = "pulling owner/sql: 1 KiB of 2 KiB"
    fetcher.step()
    assert pod.entries["sql"] == {"name": "sql", "version": "1", "failed": False, "message": process.words}
    process.ends(place="/cache/sql")
    fetcher.step()
    assert pod.entries["sql"] == {"name": "sql", "version": "1", "path": "/cache/sql"}
    fetcher.step()
    assert len(pod.started) == 1


def test_what_is_to_wait_is_not_fetched_and_says_why(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants({"name": "sql", "version": "1", "message": "it comes with the next pod"})
    fetcher.step()
    assert pod.entries["sql"] == {
        "name": "sql", "version": "1", "failed": False, "message": "it comes with the next pod",
    }  # fmt: skip
    assert pod.started == []


def test_what_fails_says_why_and_is_tried_again_ever_more_rarely(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants(SQL)
    problem = "owner/sql: no such model"
    for tries, pause in enumerate((10, 20, 40), 1):
        fetcher.step()
        pod.started[-1][1].ends(3, problem)
        fetcher.step()
        assert pod.entries["sql"] == {"name": "sql", "version": "1", "failed": True, "message": problem}
        pod.now += pause - 1
        fetcher.step()
        assert len(pod.started) == tries
        pod.now += 1
    fetcher._fetches["sql"].failures = 1100  # four days later
    for _ in range(2):
        fetcher.step()
        pod.started[-1][1].ends(3, problem)
        fetcher.step()
        pod.now += 300
    fetcher.step()
    pod.started[-1][1].ends(place="/cache/sql")
    fetcher.step()
    assert pod.entries["sql"]["path"] == "/cache/sql"


def test_a_change_starts_anew_and_a_removal_ends_what_runs(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants(SQL)
    fetcher.step()
    pod.wants({**SQL, "version": "2", "source": "owner/better"})
    fetcher.step()
    assert [(process.killed, name) for name, process, _ in pod.started] == [(True, "sql"), (False, "sql")]
    pod.wants()
    fetcher.step()
    assert pod.started[-1][1].killed
    assert pod.entries == {}


def test_a_broken_list_changes_nothing(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants({"name": "here", "version": "1", "path": "/adapters/here"})
    fetcher.step()
    (pod.folder / "list").write_text('{"adapters": [{"nam')
    fetcher.step()
    assert list(pod.entries) == ["here"]


def test_a_restart_fetches_nothing_again(pod: Pod) -> None:
    place = pod.folder / "place"
    place.mkdir()
    (pod.folder / "out").write_text(json.dumps({"adapters": [{"name": "sql", "version": "1", "path": str(place)}]}))
    fetcher = pod.fetcher()
    pod.wants(SQL, {**SQL, "name": "other"})
    fetcher.step()
    assert pod.entries["sql"]["path"] == str(place)
    assert [name for name, *_ in pod.started] == ["other"]


def test_no_more_than_four_are_fetched_at_once(pod: Pod) -> None:
    fetcher = pod.fetcher()
    pod.wants(*({**SQL, "name": f"a{n}"} for n in range(6)))
    fetcher.step()
    assert len(pod.started) == 4
    pod.started[0][1].ends(place="/cache/a0")
    fetcher.step()
    fetcher.step()
    assert len(pod.started) == 5


def test_each_adapter_has_its_own_credentials_alone(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    secret = pod.folder / "hub"
    secret.mkdir()
    files = {"HF_TOKEN": "hub/token", "AWS_SESSION_TOKEN": "hub/session"}
    private = {"variables": {"HF_ENDPOINT": "http://hub"}, "files": files, "optional": ["AWS_SESSION_TOKEN"]}
    fetcher = pod.fetcher()
    pod.wants(SQL, {**SQL, "name": "private", **private})
    fetcher.step()
    assert pod.entries["private"]["message"] == "there is no Secret hub with the key token"
    (secret / "token").write_text("hf_secret\n")
    pod.now += 10
    fetcher.step()
    environments = {name: environment for name, _, environment in pod.started}
    assert environments["private"].items() >= {"HF_TOKEN": "hf_secret", "HF_ENDPOINT": "http://hub"}.items()
    assert "HF_TOKEN" not in environments["sql"]
    assert "AWS_SESSION_TOKEN" not in environments["private"]
    assert "hf_secret" not in (pod.folder / "out").read_text()


def test_a_credential_that_no_process_can_have_keeps_no_other_adapter_waiting(pod: Pod) -> None:
    (pod.folder / "token").write_bytes(b"hf_\0secret")
    (pod.folder / "there").mkdir()
    pod.wants({**SQL, "files": {"HF_TOKEN": "token"}}, {"name": "other", "path": str(pod.folder / "there")})
    Fetcher(pod.folder / "list", pod.folder / "out", pod.folder, pull_process(None)).step()
    assert pod.entries["sql"]["failed"] and "null byte" in pod.entries["sql"]["message"]
    assert "path" in pod.entries["other"] and "secret" not in (pod.folder / "out").read_text()


def test_a_list_that_is_not_written_yet_takes_nothing_away(pod: Pod) -> None:
    (pod.folder / "list").write_text("")
    (pod.folder / "out").write_text("as it was")
    pod.fetcher().step()
    assert (pod.folder / "out").read_text() == "as it was"


def test_a_process_says_where_the_adapter_is_or_why_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "adapter_config.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    start = pull_process(None)
    good, empty = (start(Wanted(name=name, source=str(tmp_path / name)), {}) for name in ("good", "empty"))
    assert (good._process.wait(120), empty._process.wait(120)) == (0, 3)
    assert good.place() == str(tmp_path / "good")
    assert "not an adapter that PEFT saved" in empty.last_message()
    assert good.ended() == 0


def test_the_demo_model_is_no_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "--adapter", "smollm2"]) == 3
    assert "smollm2 is the demo model, not an adapter" in capsys.readouterr().err
    assert main(["pull", "--adapter", "--check-memory", "smollm2"]) == 2
