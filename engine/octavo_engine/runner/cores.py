"""Configures how a thread computes on a CPU: the number of cores, and how denormal numbers are treated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")


def configure_cpu_threads(environ: Mapping[str, str], ranks: int = 1) -> None:
    """Set PyTorch's threads to the cores that each of `ranks` processes may use, unless OMP_NUM_THREADS is set.

    The calling thread, and OpenMP's threads that it starts later, take numbers below 1.2e-38 for 0: x86 processors take
    over a hundred cycles for each, and the decays of recurrent layers have many of them.
    """
    torch.set_flush_denormal(True)
    if "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(max(1, usable_cores(CGROUP) // ranks))


def usable_cores(cgroup: Path) -> int:
    """Return the number of cores in the affinity mask, at most the container's CPU limit (cgroup v2, then v1)."""
    cores = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, cores if quota is None else min(cores, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except OSError:
        pass
    try:
        v1 = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        return None if v1 < 0 else v1 / int((cgroup / "cpu" / "cpu.cfs_period_us").read_text())
    except OSError:
        return None
