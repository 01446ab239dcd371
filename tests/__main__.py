"""`make test`: runs all tests in four pytest processes at once, two of which have a cluster.

The cluster tests mostly wait for pods, and the others compute on two cores meanwhile, so that the total time is little
more than theirs. Those others have a lower priority, so that no pod's start waits for them. The output of a process is
printed when those before it have ended. The reasons of failures and the summaries of all processes are printed last,
because CI keeps the end of a long output. Arguments are passed to all processes. The exit code is 0 only if all
succeeded.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.browser import ensure_browser
from tests.cluster.build import HELM, VERSITYGW, ensure_built
from tests.cluster.errors import ClusterError

ENGINE, CLUSTER = "tests/engine", "tests/cluster"
FIRST_CLUSTER = [
    f"{CLUSTER}/test_{name}.py"
    for name in ("llmservice_life", "llmservice_models", "llmservice_autoscaling", "llmservice_upgrade")
]
"""In these modules real engines load a model; they take half of the time of all cluster tests."""

FIRST_MOVED = "test_spec"
"""The engine's modules from this name on run with the rest, so that both processes end at about the same time."""

WAITING = ["tests/operator", "tests/monitoring"]
"""Their tests often wait, without computing: they come first, as the clusters' pods compute meanwhile."""

MOST_REASONS = 100
"""Lines about failures that are repeated of each process."""


def runs(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the pytest arguments of each process, by its name. A user's own cluster is used by one process only."""
    modules = sorted(Path(ENGINE).rglob("test_*.py"))
    moved = [module for module in modules if module.name >= FIRST_MOVED]
    computing = {
        "the engine": [ENGINE, *(f"--ignore={module}" for module in moved)],
        "the rest without a cluster": [
            *WAITING, *(path for path in _with_tests() if path not in (*WAITING, CLUSTER)),
            *(f"--ignore={module}" for module in modules if module not in moved),
        ],
    }  # fmt: skip
    if environment.get("TEST_KUBECONFIG"):
        return {**computing, "with the cluster": [CLUSTER]}
    second = [CLUSTER, *(f"--ignore={module}" for module in FIRST_CLUSTER)]
    return {**computing, "with the first cluster": FIRST_CLUSTER, "with the second cluster": second}


def _with_tests() -> list[str]:
    """Return the folders and modules of tests/ that have tests."""
    return sorted(
        str(path) for path in Path("tests").iterdir() if path.match("test_*.py") or any(path.rglob("test_*.py"))
    )


def main(arguments: list[str]) -> int:
    # Tests of both runs need these programs, and Go's build takes longer than the time limit of a test.
    ensure_built(lambda line: print(f"tests: {line}", flush=True), (HELM, VERSITYGW))
    ensure_browser(lambda line: print(f"tests: {line}", flush=True))
    selections = runs(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / str(number) for number in range(len(selections))]
        processes = [
            _start([*selection, *arguments], output)
            for selection, output in zip(selections.values(), outputs, strict=True)
        ]
        try:
            closing_lines = [_print_until_end(*each) for each in zip(processes, outputs, strict=True)]
            reasons = [line for output in outputs for line in _reasons(output)]
        finally:
            for process in processes:  # Ctrl-C ends these processes too: they are in the terminal's foreground group
                process.wait()
    print("".join(f"tests: {line}\n" for line in reasons), end="")
    for name, line in zip(selections, closing_lines, strict=True):
        print(f"tests: {name}: {line}")
    return int(any(process.returncode for process in processes))


def _start(arguments: list[str], output: Path) -> subprocess.Popen[bytes]:
    """Start a pytest that writes to `output` and is interrupted if this process is killed."""
    lower = [] if any(argument.startswith(CLUSTER) for argument in arguments) else ["nice", "-n", "5"]
    command = ["setpriv", "--pdeathsig", "INT", *lower, sys.executable, "-m", "pytest", *arguments]
    with output.open("wb") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)


def _print_until_end(process: subprocess.Popen[bytes], output: Path) -> str:
    """Print the output of the process as it arrives, and return pytest's summary, or the last line without one."""
    with output.open(errors="replace") as file:
        running = True
        while running:
            running = process.poll() is None
            sys.stdout.write(file.read())
            sys.stdout.flush()
            if running:
                time.sleep(0.2)
    lines = output.read_text(errors="replace").rstrip().splitlines() or [""]
    return next((line for line in reversed(lines) if line.startswith("=====")), lines[-1])  # libraries may write later


def _reasons(output: Path) -> list[str]:
    """Return pytest's lines that name failed tests and say why they failed, the first `MOST_REASONS` of a process."""
    lines = output.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith(("FAILED ", "ERROR ", "E   "))][:MOST_REASONS]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        print(f"tests: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
