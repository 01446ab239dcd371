"""The number of cores that this process may use. Imports no torch, since the HTTP process asks for it too."""

from __future__ import annotations

import math
import os

from octavo_engine.runner.cgroups import cgroup_cores


def usable_cores() -> int:
    """Return the number of cores in the affinity mask, at most the CPU limit of the container or systemd unit."""
    cores = len(os.sched_getaffinity(0))
    limit = cgroup_cores()
    return max(1, cores if limit is None else min(cores, math.ceil(limit)))
