"""The memory of processes that no other program on the machine can change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil

_FIELDS = ("Pss_Anon", "Pss_Shmem", "SwapPss")


def anonymous_mib(processes: Sequence[psutil.Process]) -> float:
    """Return the processes' own memory in MiB: anonymous pages and shared memory, also those that are swapped out.

    A page that some of the processes share counts once. Pages of files, such as libraries, are left out: PSS divides
    them among all processes that map the same file, so a server's PSS rises when an unrelated program ends, and RSS
    falls when the kernel takes them back for others. Source: proc_pid_smaps(5), /proc/PID/smaps_rollup.

    Raises OSError if a process has ended, and RuntimeError where the kernel does not tell.
    """
    return sum(anonymous_kib(Path(f"/proc/{process.pid}/smaps_rollup").read_text()) for process in processes) / 1024


def anonymous_kib(rollup: str) -> int:
    """Return one process's own memory in KiB, from the text of its smaps_rollup; RuntimeError if a field is missing."""
    values = dict(line.split(":", 1) for line in rollup.splitlines()[1:])  # the first line has the addresses
    if missing := [name for name in _FIELDS if name not in values]:
        raise RuntimeError(f"smaps_rollup has no {', '.join(missing)}, but {', '.join(values)}: use Linux 5.3 or later")
    return sum(int(values[name].split()[0]) for name in _FIELDS)
