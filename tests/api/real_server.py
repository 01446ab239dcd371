"""`octavo-engine serve` as users start it, with smollm2 or another model, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import openai

from tests.free_port import free_port


class RealServer:
    """A server process; its log is kept for a failing test to show."""

    def __init__(self, log: Path, model: str = "smollm2", *options: str) -> None:
        """Start the server; `options` replace those with which smollm2 is served."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx2.Client(base_url=self.url, timeout=120)
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        self.log = log
        command = [sys.executable, "-m", "octavo_engine.cli", "serve", model, "--device", "cpu"]
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"]
        command += options or ("--max-model-len", "1024", "--num-kv-blocks", "512", "--max-num-seqs", "16")
        command += ["--batch-storage", str(log.parent / "batches")]
        # One thread: with more, a test machine that is busy otherwise makes the model's threads wait for one another.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_DISPLAY_ENV": "verbose"}
        environment.pop("GOMP_SPINCOUNT", None)  # of a command line that a test before called in this process
        self.process = subprocess.Popen(command, stderr=log.open("wb"), env=environment)

    def wait_until(self, condition: Callable[[], object], seconds: float = 240) -> None:
        """Wait until `condition` holds; it is asked ever less often, as each question takes CPU time."""
        deadline, pause = time.monotonic() + seconds, 0.05
        while not condition():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(pause)
            pause = min(1.2 * pause, 0.5)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.http.get("/health/ready").status_code == 200
        except httpx2.ConnectError:  # the first moments
            return False

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))

    def end(self) -> int:
        """End the server by SIGTERM, and return its exit code; the log of one that has ended by itself is printed."""
        if (code := self.process.poll()) is not None:
            print(f"the server had ended with {code}; the end of its log:\n{self.log.read_text()[-4000:]}", flush=True)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)
