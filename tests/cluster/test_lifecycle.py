"""The end of a cluster: it leaves no trace, whenever and in whatever way it is ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.processes import alive, command, name

from . import state
from .client import Client
from .layout import CHECKOUT, HOME
from .octavo import ONLY_ON_OURS
from .waiting import wait_until

pytestmark = ONLY_ON_OURS

START = [sys.executable, "-m", "tests.cluster"]
ENDS = 120.0
"""Seconds within which everything must be gone; on a quiet machine it takes a few."""


@dataclass
class Foreground:
    """`make cluster`, started by a test with a folder of its own."""

    process: subprocess.Popen[str]
    home: Path
    output: Path

    def wait_for(self, words: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.said()
            return words in self.said()

        wait_until(said, timeout=240, describe=lambda: f"{words!r} in:\n{self.said()}")

    def said(self) -> str:
        return self.output.read_text()

    def client(self) -> Client:
        return Client(self.home / "kubeconfig", programs=HOME / "bin", scratch=self.home / "scratch")

    def traces(self) -> "Traces":
        """Return its traces on the host at present."""
        eldest = psutil.Process(self.process.pid)
        family = {eldest, *eldest.children(recursive=True)}
        folder = next(Path(found[-1]) for found in map(command, family) if "tests.cluster.janitor" in found)
        return Traces(family | _in_their_network(family), folder)


@dataclass(frozen=True)
class Traces:
    processes: set[psutil.Process]
    folder: Path

    def left(self) -> list[object]:
        running = [each for each in self.processes if alive(each)]
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if self.folder.name in line]
        return [*running, *mounts, *state.leftovers(self.folder)]

    def wait_until_gone(self) -> None:
        wait_until(lambda: not self.left(), timeout=ENDS, describe=lambda: f"all is gone: {self.left()}")


@pytest.fixture
def foreground(cluster: Client, tmp_path: Path) -> Iterator[Foreground]:
    """A second cluster on its way, beside the session's; ended by force if the test does not end it."""
    yield from _start(tmp_path, START)


@pytest.fixture
def child_of_a_shell(cluster: Client, tmp_path: Path) -> Iterator[Foreground]:
    """Start it as `make` does: the started process is the parent of the one that keeps the cluster."""
    yield from _start(tmp_path, ["bash", "-c", '"$@"; exit $?', "shell", *START])


def _start(tmp_path: Path, command: list[str]) -> Iterator[Foreground]:
    home, output = tmp_path / "home", tmp_path / "output"
    with output.open("w") as file:
        process = subprocess.Popen(
            [*command, "--home", str(home)],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        )
    yield Foreground(process, home, output)
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_cluster_with_running_pods_ends_without_a_trace_and_another_one_goes_on(
    foreground: Foreground, number: signal.Signals, namespace: Client
) -> None:
    foreground.wait_for("KUBECONFIG=")
    client = foreground.client()
    namespace.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine", "namespace": "default"}})
    assert not client.exists("configmap", "mine")
    namespace.kubectl("delete", "configmap", "mine", "--namespace=default")
    container = {"name": "c", "image": "octavo-engine:dev", "command": ["sleep", "1000"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "sleeps"}, "spec": {"containers": [container]}}
    for each in (client, namespace):
        each.apply(pod)
        each.kubectl("wait", "--for=condition=Ready", "pod/sleeps", "--timeout=180s")
    traces = foreground.traces()
    names = {name(process) for process in traces.processes}
    assert {"etcd", "kube-apiserver", "kubelet", "containerd", "sleep"} <= names

    foreground.process.send_signal(number)
    code = foreground.process.wait(ENDS)
    assert code == (-number if number == signal.SIGKILL else 0)
    traces.wait_until_gone()
    if number != signal.SIGKILL:
        assert not (foreground.home / "kubeconfig").exists()
    assert namespace.get("pod", "sleeps")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert namespace.run_pod("octavo-engine:dev", ["python", "-c", "print(2)"], name="after").logs == "2\n"


@pytest.mark.parametrize(
    ("step", "number"), [("containerd answers", signal.SIGTERM), ("the node registers", signal.SIGKILL)]
)
def test_a_cluster_interrupted_on_its_way_ends_without_a_trace(
    foreground: Foreground, step: str, number: signal.Signals
) -> None:
    foreground.wait_for(step)
    traces = foreground.traces()
    foreground.process.send_signal(number)
    code = foreground.process.wait(ENDS)
    is_late = "ends with Ctrl-C" in foreground.said()  # this test stood still: it was ready before the signal came
    assert code == (-number if number == signal.SIGKILL else 0 if is_late else 128 + number)
    traces.wait_until_gone()


def test_a_cluster_ends_when_its_parent_is_killed(child_of_a_shell: Foreground) -> None:
    child_of_a_shell.wait_for("KUBECONFIG=")
    traces = child_of_a_shell.traces()
    child_of_a_shell.process.kill()
    child_of_a_shell.process.wait()
    traces.wait_until_gone()


def test_the_next_cluster_sweeps_what_an_earlier_one_left(foreground: Foreground) -> None:
    foreground.wait_for("the node registers")
    traces = foreground.traces()
    next(each for each in traces.processes if "tests.cluster.janitor" in command(each)).kill()
    foreground.process.kill()
    wait_until(
        lambda: not [each for each in traces.left() if isinstance(each, psutil.Process)],
        timeout=ENDS,
        describe=lambda: f"the processes are gone: {traces.left()}",
    )
    assert traces.folder.exists()

    mine = state.create()
    assert traces.left() == []
    os.close(mine.lock)
    state.sweep(mine.folder)
    assert state.leftovers(mine.folder) == []


def a_second_cluster_in_its_folder_names_it(foreground: Foreground) -> None:
    second = subprocess.run(
        [*START, "--home", str(foreground.home)], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert second.returncode == 1
    assert f"a cluster of this checkout is up, or on its way (process {foreground.process.pid})" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_program_that_dies_ends_the_cluster_with_its_last_words(foreground: Foreground) -> None:
    foreground.wait_for("KUBECONFIG=")
    a_second_cluster_in_its_folder_names_it(foreground)
    traces = foreground.traces()
    next(process for process in traces.processes if name(process) == "etcd").terminate()
    assert foreground.process.wait(ENDS) == 1
    assert "cluster: etcd ended with code" in foreground.said()
    assert str(foreground.home / "logs" / "etcd.log") in foreground.said()
    assert "Traceback" not in foreground.said()
    traces.wait_until_gone()


def _in_their_network(family: set[psutil.Process]) -> set[psutil.Process]:
    """Return every process of the machine in a network namespace that one of the family is in, and this test is not."""
    theirs = {_network(member.pid) for member in family} - {_network(os.getpid()), None}
    return {process for process in psutil.process_iter() if _network(process.pid) in theirs}


def _network(pid: int) -> int | None:
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return None
