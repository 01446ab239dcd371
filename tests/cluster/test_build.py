"""Builds of the cluster's programs, with a module that needs no network: once, only complete, and again when a pin
changes."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from . import build
from .build import Component, ensure_built
from .errors import ClusterError
from .layout import CHECKOUT

HELLO = Component(name="hello", module="example.com/hello", programs=("hello",), source="hello")
GOOD = 'package main\n\nfunc main() { println("hello") }\n'


@pytest.fixture(scope="module")
def go_cache() -> str:
    """The user's own cache of compiled packages: Go's runtime is in it once something was built."""
    return subprocess.run(["go", "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_cache: str) -> Path:
    """A folder like `binaries/` with the module `hello`, and an empty cache of programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GOCACHE", go_cache)  # else it would lie in the folder above too
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "hello" / "code").mkdir(parents=True)
    (tmp_path / "hello" / "go.sum").touch()
    (tmp_path / "hello" / "code" / "go.mod").write_text("module example.com/hello\n\ngo 1.26.0\n")
    (tmp_path / "hello" / "code" / "main.go").write_text(GOOD)
    write_pins(tmp_path, version="v1.2.3")
    return tmp_path


def write_pins(sources: Path, version: str) -> None:
    (sources / "hello" / "go.mod").write_text(
        "module octavo.dev/hello\n\ngo 1.26.0\n\ntool example.com/hello\n\n"
        f"require example.com/hello {version}\n\nreplace example.com/hello => ./code\n"
    )


def test_a_build_is_done_once(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    ensure_built(lines.append, (HELLO,))
    assert HELLO.folder.name.startswith("hello-v1.2.3-")
    assert subprocess.run([build.program("hello", (HELLO,))], capture_output=True, check=True).stderr == b"hello\n"
    assert "hello v1.2.3" in lines[0]
    assert "built in" in lines[-1]

    monkeypatch.setenv("PATH", "/nowhere")
    ensure_built(lines.append, (HELLO,))


def test_a_changed_pin_is_built_anew_beside_the_old_one(sources: Path) -> None:
    ensure_built(print, (HELLO,))
    old = HELLO.folder
    write_pins(sources, version="v1.2.4")
    assert not HELLO.folder.exists()
    ensure_built(print, (HELLO,))
    assert HELLO.folder != old
    assert old.is_dir()


def test_a_changed_program_of_our_own_is_another_build(sources: Path) -> None:
    old = HELLO.folder
    (sources / "hello" / HELLO.name).mkdir()
    (sources / "hello" / HELLO.name / "main.go").write_text(GOOD)
    assert HELLO.folder != old


def test_without_go_the_error_says_so(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ClusterError, match=r"Go 1\.26 or newer is needed to build hello") as caught:
        ensure_built(print, (HELLO,))
    assert caught.value.exit_code == 2


def test_a_failed_build_shows_the_compilers_words_and_leaves_nothing(sources: Path) -> None:
    (sources / "hello" / "code" / "main.go").write_text("package main\n\nfunc main() { undefinedName() }\n")
    with pytest.raises(ClusterError, match="undefined: undefinedName"):
        ensure_built(print, (HELLO,))
    assert [path.name for path in HELLO.folder.parent.iterdir()] == [".hello.lock"]


def test_a_module_without_the_program_is_an_error(sources: Path) -> None:
    other = replace(HELLO, programs=("hello", "goodbye"))
    with pytest.raises(ClusterError, match="no `tool` line for goodbye"):
        ensure_built(print, (other,))
    assert not other.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_ends_go_too_and_the_next_one_succeeds(sources: Path, number: signal.Signals) -> None:
    slow_go = sources / "tools" / "go"
    slow_go.parent.mkdir()
    slow_go.write_text(f'#!/bin/bash\necho "$$" > {sources}/pid\nexec sleep 1000\n')
    slow_go.chmod(0o755)
    script = f"""
        import pathlib
        from tests.cluster import build
        build.SOURCES = pathlib.Path({str(sources)!r})
        component = build.Component(name="hello", module="example.com/hello", programs=("hello",), source="hello")
        build.ensure_built(print, (component,))
    """
    environment = os.environ | {"PATH": f"{slow_go.parent}:{os.environ['PATH']}"}
    # Where pytest runs in the background, the shell has it and its children ignore SIGINT.
    command = ["env", "--default-signal=INT", sys.executable, "-c", textwrap.dedent(script)]
    builder = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stderr=subprocess.DEVNULL)
    while not (pid := _content(sources / "pid")):
        assert builder.poll() is None
        time.sleep(0.05)
    builder.send_signal(number)
    assert builder.wait() != 0
    while Path("/proc", pid).exists():  # the test's time limit is the bound
        time.sleep(0.05)

    shutil.rmtree(slow_go.parent)
    ensure_built(print, (HELLO,))
    assert sorted(path.name for path in HELLO.folder.parent.iterdir()) == sorted([".hello.lock", HELLO.folder.name])


@pytest.mark.parametrize("minor", build.MINORS)
def test_every_component_of_the_cluster_is_pinned(minor: str) -> None:
    assert build.kubernetes(minor).version.startswith(f"v{minor}.")
    for component in build.components(minor):
        assert component.version.startswith("v")
        assert component.folder.name.startswith(f"{component.name}-{component.version}-")


def _content(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""
