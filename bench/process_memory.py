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

    Raises OSError if a process has ended.
    """
    kib = 0
    for process in processes:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in _FIELDS:
                kib += int(value.split()[0])
    return kib / 1024
