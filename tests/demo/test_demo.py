"""`make demo` as a new user runs it: a real answer, and no process or file left, whenever it is interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from demo.__main__ import ask

ROOT = Path(__file__).parent.parent.parent
UNUSABLE_PROXY = {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
"""As behind a company's proxy, which cannot reach this machine itself."""


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The demo's own folder for temporary files; its name is short because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


class Demo:
    """A running `python -m demo`."""

    def __init__(self, scratch: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "demo"],
            cwd=ROOT,
            env={**os.environ, **UNUSABLE_PROXY, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.scratch = scratch
        self.output = ""
        self._seen = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while character := self.process.stdout.read(1):
            with self._seen:
                self.output += character
                self._seen.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait until it has printed `text`."""
        with self._seen:
            assert self._seen.wait_for(lambda: text in self.output, timeout=300), self.output

    def family(self) -> list[psutil.Process]:
        """The demo's processes, its own included."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait(timeout=300)
        self._reader.join(timeout=120)
        return code


def assert_nothing_left(demo: Demo, family: list[psutil.Process], before: str) -> None:
    """No process, no temporary file, no changed file."""
    _, alive = psutil.wait_procs(family, timeout=120)
    assert alive == []
    assert list(demo.scratch.iterdir()) == []
    assert changes() == before


def changes() -> str:
    return subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_newcomer_sees_an_answer_and_its_figures(scratch: Path) -> None:
    before = changes()
    demo = Demo(scratch)
    demo.wait_for("smollm2: ")
    family = demo.family()
    assert demo.end() == 0, demo.output
    answer = demo.output.partition("smollm2: ")[2].partition("octavo:")[0]
    assert len(answer.split()) > 20
    assert "librar" in answer.lower()
    for figure in ("time to first token", "tokens/s", "endpoint http://127.0.0.1:"):
        assert figure in demo.output
    assert_nothing_left(demo, family, before)


def test_what_the_engine_logs_of_a_request_is_above_the_question(capsys: pytest.CaptureFixture[str]) -> None:
    def create(**_: Any) -> Any:
        print("a log line")
        chunk = {"choices": [{"delta": {"content": "Paris."}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        return nullcontext([json.loads(json.dumps(chunk), object_hook=lambda each: SimpleNamespace(**each))])

    completions = SimpleNamespace(completions=SimpleNamespace(create=create))
    models = SimpleNamespace(list=lambda: SimpleNamespace(data=[SimpleNamespace(id="smollm2")]))
    answer = ask(cast("Any", SimpleNamespace(models=models, chat=completions)), "What is the capital of France?")
    assert (answer.prompt_tokens, answer.tokens) == (3, 2)
    assert capsys.readouterr().out.partition("a log line\n")[2] == (
        "\nyou:     What is the capital of France?\nsmollm2: Paris.\n\n"
    )


@pytest.mark.parametrize(
    ("moment", "number"),
    [("running manifests", signal.SIGINT), ("smollm2: ", signal.SIGTERM), ("running manifests", signal.SIGHUP)],
)
def test_an_interrupted_demo_leaves_nothing(moment: str, number: signal.Signals, scratch: Path) -> None:
    """While it loads, and in the middle of its answer; twice, as impatient people do."""
    before = changes()
    demo = Demo(scratch)
    demo.wait_for(moment)
    while len(family := demo.family()) < 2:
        assert demo.process.poll() is None, demo.output
    demo.process.send_signal(number)
    demo.process.send_signal(number)
    assert demo.end() == 128 + number, demo.output
    assert_nothing_left(demo, family, before)
