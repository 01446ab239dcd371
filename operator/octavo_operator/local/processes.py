"""Starts processes that end with this one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from octavo_operator.local.command import Command
from octavo_operator.local.errors import LocalError


def start(command: Command, root: str) -> subprocess.Popen[bytes]:
    """Start a process, in a session of its own."""
    return subprocess.Popen(
        command.argv, env=command.env, cwd=root, stdin=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=_end_with_parent,  # noqa: PLW1509 - one system call, no locks
    )  # fmt: skip


@contextlib.contextmanager
def beside(command: Command, root: str) -> Iterator[None]:
    """Run a native sidecar, and whatever it starts, while the block runs."""
    process = start(command, root)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_to_the_end(command: Command, root: str) -> None:
    """Run an init container, which reports its own progress on standard error."""
    done = subprocess.run(
        command.argv, env=command.env, cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
        preexec_fn=_end_with_parent,
    )  # fmt: skip
    if done.returncode:
        code = done.returncode if done.returncode > 0 else 128 - done.returncode
        raise LocalError(f"the model could not be fetched: exit code {code}", code)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)
