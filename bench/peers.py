"""Helpers for any server in a comparison: a free port, and the time until the server is ready."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

_READY_WITHIN = 600.0
"""Seconds: with an empty cache, vLLM compiles for minutes."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that is ready."""

    url: str
    ready_seconds: float
    """Seconds from the start of its process."""


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_ready(process: subprocess.Popen[bytes], url: str, log: Path | None = None) -> None:
    """Wait until `url` answers with success.

    RuntimeError, with the end of the log, if the server ends or takes too long.
    """
    limit = time.monotonic() + _READY_WITHIN
    while process.poll() is None and time.monotonic() < limit:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310  (a server of ours)
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    said = "" if log is None else f":\n{log.read_text()[-3000:]}"
    what = "did not get ready" if process.returncode is None else f"ended with exit code {process.returncode}"
    raise RuntimeError(f"the server {what}{said}")
