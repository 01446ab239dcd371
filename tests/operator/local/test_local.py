"""`octavo-operator local` runs the rendered container as a process, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import psutil
import pytest
import yaml

from octavo_operator.api.resource import LLMService, parse
from octavo_operator.local import command
from octavo_operator.local.command import translate
from octavo_operator.local.engine import LIVENESS, LocalEngine, Report
from octavo_operator.local.errors import LocalError
from octavo_operator.local.main import main
from octavo_operator.local.run_local import run_local
from octavo_operator.render import RenderConfig, render
from tests.operator.bad_llmservices import GONE, VALID, merged
from tests.operator.golden import SAMPLES
from tests.processes import alive

ENGINE = Path(__file__).parents[1] / "misbehaving_engine.py"


def service(behaviour: str = "good", **fields: Any) -> LLMService:
    rollout = {"startupTimeoutSeconds": 600, "drainTimeoutSeconds": 120}
    return parse(merged(VALID, {"spec": {"model": {"name": behaviour}, "rollout": rollout, **fields}}))


def container_of(llmservice: LLMService, field: str = "containers") -> dict[str, Any]:
    deployment = render(llmservice, RenderConfig("x"))[-1]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"][field][0]
    return found


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`octavo-engine` is the script, and temporary folders lie where the test can look."""
    script = tmp_path / "octavo-engine"
    real = f'[ "$1" = adapters ] && exec "{command.executable("octavo-engine")}" "$@"'
    script.write_text(f'#!/bin/sh\n{real}\nexec "{sys.executable}" "{ENGINE}" "$@"\n')
    script.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(command, "executable", lambda name: str(script))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    before = set(psutil.Process().children(recursive=True))
    yield
    assert not list((tmp_path / "tmp").iterdir())
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [child for child in left if alive(child)]


def ignore(_: str) -> None:
    pass


def test_places_ports_and_flags_are_translated(tmp_path: Path) -> None:
    fields = {
        "model": {"source": {"demo": GONE, "persistentVolumeClaim": {"claimName": "w", "path": "llama"}}},
        "auth": {"apiKeysSecretRef": {"name": "keys"}},
        "engine": {"env": [{"name": "MINE", "value": "/cache/x"}, {"name": "OTHER", "value": "/cachet"}]},
    }
    folders = {name: tmp_path / name for name in ("tmp", "home", "shm", "cache", "weights", "api-keys")}
    llmservice = parse(merged(VALID, {"spec": fields}))
    environ = {"OCTAVO_PORT": "1", "PATH": "/bin"}
    command = translate(container_of(llmservice), 4321, folders, environ)
    assert command.argv[1:3] == ["serve", f"{tmp_path}/weights/llama"]
    assert {"--host=127.0.0.1", "--port=4321", f"--api-key-file={tmp_path}/api-keys"} <= set(command.argv)
    assert command.env["MINE"] == f"{tmp_path}/cache/x"
    assert command.env["OTHER"] == "/cachet"
    assert (command.env["HOME"], command.env["TMPDIR"]) == (f"{tmp_path}/home", f"{tmp_path}/tmp")
    assert (command.env["PATH"], command.env["HF_HUB_OFFLINE"]) == ("/bin", "1")
    assert "OCTAVO_PORT" not in command.env


def test_a_token_comes_from_the_environment_or_is_asked_for(tmp_path: Path) -> None:
    hub = {"repository": "a/b", "tokenSecretRef": {"name": "hf", "key": "token"}}
    llmservice = parse(merged(VALID, {"spec": {"model": {"source": {"demo": GONE, "huggingFace": hub}}}}))
    folders = dict.fromkeys(("tmp", "home", "shm", "cache"), tmp_path)
    fetch = container_of(llmservice, "initContainers")
    assert translate(fetch, 1, folders, {"HF_TOKEN": "secret"}).env["HF_TOKEN"] == "secret"
    with pytest.raises(LocalError, match="set HF_TOKEN in the environment"):
        translate(fetch, 1, folders, {})
    assert f"--link={tmp_path}/model" in translate(fetch, 1, folders, {"HF_TOKEN": "secret"}).argv


def test_a_model_that_cannot_be_fetched_is_not_served() -> None:
    hub = {"repository": "a/b", "endpoint": "http://127.0.0.1:9"}
    llmservice = service(model={"source": {"demo": GONE, "huggingFace": hub}})
    with pytest.raises(LocalError, match="could not be fetched") as failed, run_local(llmservice):
        pass
    assert failed.value.exit_code == 3


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"containers": [{"name": "engine", "$patch": "delete"}]}, "leaves the container engine without command, args"),
        *(
            (wrong, "the API server would refuse it")
            for wrong in (
                {"$patch": "delete"},
                {"containers": "engine"},
                {"terminationGracePeriodSeconds": "x"},
                *(
                    {"containers": [{"name": "engine", **odd}]}
                    for odd in (
                        {"env": [{"name": "A", "value": 1}]},
                        {"env": [{"name": "A=B", "value": "x"}]},
                        {"env": [{"name": "A", "valueFrom": {"fieldRef": "x"}}]},
                        {"args": [None]},
                    )
                ),
                {"volumes": [{"name": "two", "emptyDir": {}, "secret": {}}]},
            )
        ),
        (
            {"containers": [{"name": "engine", "startupProbe": {"$patch": "replace", "exec": {"command": ["true"]}}}]},
            "changes the startupProbe to one that cannot be asked here",
        ),
        *(({"volumes": [{"name": odd, "emptyDir": {}}]}, "is not a valid name of a volume") for odd in ("", "../x")),
        ({"containers": [{"name": "engine", "startupProbe": None}]}, "without startupProbe"),
        ({"volumes": [{"name": "tmp", "$patch": "delete"}]}, "without volume tmp"),
    ],
)
def test_a_pod_template_without_what_is_needed_here_is_refused(pod: dict[str, Any], words: str) -> None:
    pod = {"terminationGracePeriodSeconds": None, **pod}
    with pytest.raises(LocalError, match=words), run_local(service(podTemplate={"spec": pod})):
        pass


@pytest.mark.usefixtures("misbehaving")
def test_a_volume_that_exists_only_in_a_cluster_is_asked_for(tmp_path: Path) -> None:
    claim = {"model": {"source": {"demo": GONE, "persistentVolumeClaim": {"claimName": "w"}}}}
    with pytest.raises(LocalError, match="--volume weights=DIR"), run_local(service(**claim)):
        pass
    with pytest.raises(LocalError, match="no such volume"), run_local(service(), volumes={"wieghts": tmp_path}):
        pass


@pytest.mark.usefixtures("misbehaving")
def test_runs_until_asked_to_stop_and_waits_for_the_drain(capfd: pytest.CaptureFixture[str]) -> None:
    with run_local(service()) as engine:
        engine.wait_ready(ignore)
        assert httpx2.get(engine.endpoint.replace("/v1", "/health/ready")).status_code == 200
        engine.stop()
        assert engine.supervise() == 0
    assert "drained" in capfd.readouterr().out


@pytest.mark.usefixtures("misbehaving")
def test_adapters_are_fetched_beside_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lies on a claim, which is a folder here; the other on a hub that cannot be reached, with a token."""
    hub = {"repository": "a/b", "endpoint": "http://127.0.0.1:9", "tokenSecretRef": {"name": "hf", "key": "token"}}
    claim = {"claimName": "tunes", "path": "mine"}
    sources = {"mine": {"persistentVolumeClaim": claim}, "far": {"huggingFace": hub}}
    monkeypatch.setenv("HF_TOKEN", "secret")
    llmservice = service(adapters=[{"name": name, "source": source} for name, source in sources.items()])
    with (
        pytest.raises(LocalError, match=r'"claimName": "tunes".*--volume adapters-\w+=DIR') as asked,
        run_local(llmservice),
    ):
        pass
    volume = re.findall(r"--volume (\S+)=DIR", str(asked.value))[0]
    with run_local(llmservice, volumes={volume: tmp_path / "tunes"}) as engine:
        engine.wait_ready(ignore)
        (home,) = (tmp_path / "tmp").glob("octavo-local-*/home")
        said = ""
        while '"failed": true' not in said:
            engine._raise_if_ended()
            time.sleep(0.1)
            said = (home / "adapters.json").read_text() if (home / "adapters.json").exists() else ""
    mine, far = json.loads(said)["adapters"]
    assert mine["path"] == str(tmp_path / "tunes/mine")
    assert "127.0.0.1:9 cannot be reached: Connection refused" in far["message"]


@pytest.mark.usefixtures("misbehaving")
@pytest.mark.parametrize("code", [0, 2, 3, 4, 5])
def test_ends_with_the_engines_exit_code(code: int) -> None:
    with pytest.raises(LocalError) as error, run_local(service(f"exits-{code}")) as engine:
        engine.wait_ready(ignore)
    assert error.value.exit_code == code


def replace_time(monkeypatch: pytest.MonkeyPatch, name: str, by: Callable[..., Any]) -> None:
    """Replace a function of `time` for the module alone: with another clock, other tests' servers lose timers."""
    monkeypatch.setattr("octavo_operator.local.engine.time", SimpleNamespace(**{**vars(time), name: by}))


@pytest.mark.usefixtures("misbehaving")
def test_a_start_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("octavo_operator.local.engine._HEARTBEAT_SECONDS", 0.0)
    monotonic, passed = time.monotonic, 0.0
    replace_time(monkeypatch, "monotonic", lambda: monotonic() + passed)

    def report(line: str) -> None:
        nonlocal passed
        said.append(line)
        passed = 1000.0 if "loading, 40%" in line else 0.0

    with (
        pytest.raises(LocalError, match=r"raise spec\.rollout\.startupTimeoutSeconds"),
        run_local(service("never-starts")) as engine,
    ):
        engine.wait_ready(report)
    assert re.fullmatch(r"loading, 40%, 4 MiB of 10 MiB; \d+ s so far; the startup timeout is 600 s", said[-1])


@pytest.mark.usefixtures("misbehaving")
def test_a_stalled_engine_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with run_local(service("stalls")) as engine:
        engine.wait_ready(ignore)
        impatient = replace(engine._probes[LIVENESS], period=0.1, failures=2)
        monkeypatch.setattr(engine, "_probes", {**engine._probes, LIVENESS: impatient})
        with pytest.raises(LocalError, match="liveness probe 2 times"):
            engine.supervise()


@pytest.mark.usefixtures("misbehaving")
def test_an_engine_that_ignores_sigterm_is_killed_when_asked_twice() -> None:
    with run_local(service("ignores-sigterm")) as engine:
        engine.wait_ready(ignore)
        engine.stop()
        engine.stop()
        assert engine.supervise() == 128 + signal.SIGKILL


@pytest.mark.usefixtures("misbehaving")
def test_an_interrupt_while_it_ends_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run_local(service("ignores-sigterm")) as engine:
        engine.wait_ready(ignore)
        replace_time(monkeypatch, "sleep", interrupted)


@pytest.fixture
def handlers() -> Iterator[None]:
    """The command takes signals for the whole process: pytest gets its own back."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("misbehaving", "handlers")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_after_its_drain(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command's own handling, with the signal coming once the engine serves."""
    wait_ready = LocalEngine.wait_ready

    def then_a_signal(engine: LocalEngine, report: Report) -> None:
        wait_ready(engine, report)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(LocalEngine, "wait_ready", then_a_signal)
    assert main(service(), 0, {}) == 0
    said = capfd.readouterr()
    assert "drained" in said.out
    assert f"{number.name}: waiting for running answers" in said.err


@pytest.mark.usefixtures("misbehaving", "handlers")
def test_variables_that_only_a_cluster_has_are_reported(capfd: pytest.CaptureFixture[str]) -> None:
    engine = {"envFrom": [{"secretRef": {"name": "more"}}]}
    with pytest.raises(LocalError):
        main(service("exits-3", engine=engine), 0, {})
    assert "note: spec.engine.envFrom" in capfd.readouterr().err


@pytest.mark.usefixtures("misbehaving")
def test_what_the_engine_started_ends_with_it() -> None:
    with run_local(service("leaves-a-child")) as engine:
        engine.wait_ready(ignore)
        children = psutil.Process(engine.pid).children(recursive=True)
        assert children
    _, alive = psutil.wait_procs(children, timeout=120)
    assert not alive


def test_a_taken_port_is_reported_before_anything_starts() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LocalError, match=f"port {port} .*--port 0"), run_local(service(), port):
            pass


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short path, since the engine's Unix socket lies below it."""
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        yield Path(folder)


def test_the_real_engine_answers_and_leaves_nothing(short_folder: Path) -> None:
    """The command as a user runs it: endpoint printed, a streamed answer, SIGINT, exit 0, no process, no folder."""
    command = [sys.executable, "-m", "octavo_operator.cli", "local", str(SAMPLES / "smollm2.yaml"), "--port", "0"]
    env = {**os.environ, "TMPDIR": str(short_folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("endpoint: http://127.0.0.1:"), line
        family = psutil.Process(process.pid).children(recursive=True)
        client = openai.OpenAI(base_url=line.split(": ", 1)[1].strip(), api_key="none")
        stream = client.chat.completions.create(
            model=yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())["metadata"]["name"],
            messages=[{"role": "user", "content": "Name the capital of France."}],
            max_tokens=16, temperature=0, stream=True,
        )  # fmt: skip
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert "Paris" in answer
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
        assert not [child for child in family if alive(child)]
        assert not list(short_folder.iterdir())
    finally:
        process.kill()


@pytest.mark.parametrize(
    "body", [b"[]", b'{"phase": 1, "progress": 0, "detail": ""}', b'{"progress": null}', b"<html>"]
)
def test_another_programs_answer_is_no_progress(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    engine = LocalEngine(SimpleNamespace(poll=lambda: None), {}, 1, 0)  # type: ignore[arg-type]
    monkeypatch.setattr(engine, "_startup_state", lambda: body)
    assert engine._progress() == "the engine does not answer yet"


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_has_the_engines_own_bar_and_no_lines_between(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setattr("octavo_operator.local.engine._HEARTBEAT_SECONDS", 0)
    monkeypatch.setattr("octavo_operator.local.engine._POLL_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    engine = LocalEngine(SimpleNamespace(poll=lambda: None), {}, 1, 0)  # type: ignore[arg-type]
    answers = iter([False, False, True])
    monkeypatch.setattr(engine, "_passes", lambda probe: next(answers))
    monkeypatch.setattr(engine, "_progress", lambda: "")
    said: list[str] = []
    engine._wait_for("startupProbe", said.append, None, "a note")
    assert len(said) == (0 if terminal else 2)
