"""The node's programs as processes, each with its log; one that ends by itself is reported."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

from .build import CONTAINERD, Component
from .errors import ClusterError
from .layout import SYSTEM_PATH
from .programs import command
from .sandbox import Sandbox

LOG_TAIL = 20
"""Lines of a log that an error shows."""


@dataclass(frozen=True)
class Process:
    name: str
    handle: subprocess.Popen[str]
    log: Path

    def check(self) -> None:
        """Raise `ClusterError`, with the end of the log, if the process has ended."""
        code = self.handle.poll()
        if code is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:])
            raise ClusterError(f"{self.name} ended with code {code}; the end of {self.log}:\n{tail}")


class Processes:
    """Starts programs in a sandbox; they end with it."""

    def __init__(self, sandbox: Sandbox, logs: Path, components: tuple[Component, ...]) -> None:
        self._sandbox = sandbox
        self.logs = logs
        self._running: list[Process] = []
        self._components = components
        self._path = ":".join([str(CONTAINERD.folder), SYSTEM_PATH])  # containerd starts its shim

    def start(self, *names: str) -> None:
        """Start programs of `programs.COMMANDS`."""
        for name in names:
            self.start_command(name, command(name, self._components))

    def start_command(self, name: str, arguments: list[str], pass_fds: tuple[int, ...] = ()) -> None:
        log = self.logs / f"{name}.log"
        with log.open("w") as file:
            handle = self._sandbox.popen(arguments, log=file, path=self._path, pass_fds=pass_fds)
        self._running.append(Process(name, handle, log))

    def restart(self, name: str) -> None:
        """Kill a program of `programs.COMMANDS`, as a crash would, and start it again."""
        (process,) = [each for each in self._running if each.name == name]
        self._running.remove(process)
        inside = psutil.Process(process.handle.pid).children(recursive=True)
        for each in inside:
            each.kill()
        psutil.wait_procs(inside)  # else its port would be taken still
        process.handle.kill()
        process.handle.wait()
        self.start(name)

    def check(self) -> None:
        """Raise `ClusterError` if one of them has ended."""
        for process in self._running:
            process.check()
