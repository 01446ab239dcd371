"""Runs a real `octavo-engine serve` for a benchmark: a process of its own on 127.0.0.1, with the given flags."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from bench.peers import free_port, wait_ready

ENGINE = Path(sys.executable).parent / "octavo-engine"


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that is ready."""

    port: int
    http: psutil.Process
    """The HTTP process."""
    engine: psutil.Process
    """Its child process, which runs the model."""
    log: IO[bytes]
    """What the server has logged, read from another place than that where it writes."""

    def has_ended(self) -> bool:
        """Return True if the HTTP process has ended, also if nothing has waited for it yet."""
        try:
            return self.http.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def metrics(self, name: str) -> dict[str, float]:
        """Return the current series of one metric in /metrics, by their last label."""
        found = re.findall(rf'^{name}{{.*"(.*)"}} (.*)$', self._metrics_page(), re.MULTILINE)
        return {label: float(value) for label, value in found}

    def histogram(self, name: str) -> dict[float, int]:
        """Return how many observations of a histogram in /metrics are at most each of its buckets' ends."""
        found = re.findall(rf'^{name}_bucket{{.*le="([^"]*)".*}} (.*)$', self._metrics_page(), re.MULTILINE)
        return {float(end): int(float(count)) for end, count in found}

    def new_log(self) -> bytes:
        """Return what the server has logged since the last call."""
        return self.log.read()

    def num_series(self) -> int:
        """Return the number of series of /metrics."""
        return len(re.findall(r"^[^#\n]", self._metrics_page(), re.MULTILINE))

    def _metrics_page(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())


@contextmanager
def octavo(model: str, *flags: str, env: Mapping[str, str] | None = None, engine: Path = ENGINE) -> Iterator[Serving]:
    """Serve `model`, with `env` added to the environment, until the block ends.

    The log of a server that ends before the block does is printed.
    """
    port = free_port()
    command = [str(engine), "serve", model, "--host=127.0.0.1", f"--port={port}", *flags]
    environ = {**os.environ, **(env or {})}
    with (
        tempfile.NamedTemporaryFile("w+") as log,
        Path(log.name).open("rb") as reader,
        subprocess.Popen(command, stderr=log, env=environ) as process,
    ):
        try:
            wait_ready(process, f"http://127.0.0.1:{port}/health/ready")
            http = psutil.Process(process.pid)
            [worker] = [each for each in http.children() if "octavo_engine.engine.process" in each.cmdline()]
            yield Serving(port, http, worker, reader)
        finally:
            if process.poll() is not None:
                log.seek(0)
                print(f"octavo-engine ended with exit code {process.returncode}:\n{log.read()[-3000:]}")
            process.terminate()
