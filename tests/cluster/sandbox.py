"""Runs one node in its own namespaces (network, process ids, mounts): the host is not changed, and all ends with them.

owner (make cluster, pytest) ── pipe ──▶ janitor ─▶ unshare ─▶ first process (1 in the node)
  └─ nsenter ─▶ etcd, kube-apiserver, kubelet …                  its end is the end of all of them
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, cast

import psutil

from . import state
from .errors import ClusterError
from .layout import CHECKOUT

RARE_COLLECTION = {"GOGC": "200"}
"""Go's programs collect garbage half as often as by default: it is about a third of the API server's CPU time."""


class Sandbox:
    """Empty namespaces that live until `close`, or until the process that made them is gone.

    `folder` is the state folder on the host; the node sees it as `layout.INSIDE`.
    """

    def __init__(self, log: Path) -> None:
        self._entered: list[subprocess.Popen[str]] = []
        made = state.create()
        self.folder = made.folder
        with log.open("w") as errors:
            self._janitor = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.janitor", str(self.folder)],
                cwd=CHECKOUT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                pass_fds=[made.lock],
                start_new_session=True,
            )
        os.close(made.lock)
        try:
            if cast(IO[str], self._janitor.stdout).readline().strip() != "up":
                raise ClusterError(f"no namespaces for the node (this needs a real root):\n{log.read_text().strip()}")
            (unshare,) = psutil.Process(self._janitor.pid).children()
            self._namespaces = Path(f"/proc/{unshare.pid}/ns")
        except BaseException:
            self.close()
            raise

    def popen(
        self, command: list[str], *, log: IO[str], path: str, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[str]:
        """Start a program in the node, with both outputs to `log` and `path` as its PATH."""
        entered = subprocess.Popen(
            [*self._enter(), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=RARE_COLLECTION | {"PATH": path, "HOME": "/root"},
            pass_fds=pass_fds,
            text=True,
            start_new_session=True,  # an interrupt at the terminal is for the owner alone
        )
        self._entered.append(entered)
        return entered

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a program in the node to its end; its exit code is the caller's to judge."""
        return subprocess.run([*self._enter(), *command], capture_output=True, text=True, check=False)

    def close(self) -> None:
        """End every process of the node and remove its traces; safe to call twice."""
        with contextlib.suppress(BrokenPipeError):
            cast(IO[str], self._janitor.stdin).close()
        for each in self._entered:
            # nsenter stops when its program is stopped, does not reap it then, and the namespaces would not end.
            each.kill()
        self._janitor.wait()
        cast(IO[str], self._janitor.stdout).close()

    def _enter(self) -> list[str]:
        spaces = self._namespaces
        return ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children", "--"]
