"""The processes of a pod as the host sees them, so that tests can kill or stop them from outside the pod."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil


def processes(pod: dict[str, Any], program: str) -> list[psutil.Process]:
    """Return the processes in the control groups of `pod` in whose command line `program` is.

    Only on our own cluster.
    """
    return [process for process in _in_pod(pod["metadata"]["uid"]) if any(program in word for word in _words(process))]


def _in_pod(uid: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if f"pod{uid}" in Path(f"/proc/{process.pid}/cgroup").read_text():
                yield process
        except OSError:  # it has just ended
            continue


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []
