"""The limits of memory and CPU of the cgroups that this process is in: a container's, or a systemd unit's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
_MEMORY_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller ("": cgroup v2, "memory": v1): the files of limit and usage, and the line of memory.stat with the bytes
of caches that the kernel can drop."""
_CPU_FILES = {"": ("cpu.max",), "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
"""By controller: the files with the microseconds that all threads together may run in a period, and the period."""


def cgroup_memory(root: Path = ROOT, own: Path = SELF) -> tuple[int, int] | None:
    """Return the tightest limit in bytes and the bytes left below it; None if no cgroup limits this process.

    `root` is where cgroups are mounted; `own` lists this process's cgroups. In a container the mounted root is usually
    the container's own cgroup. Elsewhere the limit may be set on the process's cgroup or on one above it. If several
    have limits, the bytes left are those of the cgroup that has the fewest left.
    """
    found = [
        limit
        for controller, names in _MEMORY_FILES.items()
        for folder in _folders(controller, root, own)
        if (limit := _memory_limit(folder, *names)) is not None
    ]
    return (min(limit for limit, _ in found), min(left for _, left in found)) if found else None


def cgroup_cores(root: Path = ROOT, own: Path = SELF) -> float | None:
    """Return the tightest limit of CPU time, in cores; None if no cgroup limits this process."""
    found = [
        limit
        for controller, names in _CPU_FILES.items()
        for folder in _folders(controller, root, own)
        if (limit := _cpu_limit(folder, names)) is not None
    ]
    return min(found, default=None)


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's cgroup of a controller and of all cgroups above it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    paths = {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    inside = Path(paths.get(controller, "/").lstrip("/"))
    # Without a cgroup namespace a container sees a path of the host here, which does not exist below its root.
    for part in (inside, *inside.parents):
        yield root / controller / part


def _memory_limit(folder: Path, limit_name: str, usage_name: str, droppable: str) -> tuple[int, int] | None:
    """Return the limit of one cgroup and the bytes left below it; None without a limit, or if it cannot be read."""
    try:
        limit = (folder / limit_name).read_text().strip()
        used = int((folder / usage_name).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return None
    if limit == "max":
        return None
    used = max(0, used - int(stat.get(droppable, 0)))
    return int(limit), max(0, int(limit) - used)


def _cpu_limit(folder: Path, names: Sequence[str]) -> float | None:
    """Return the limit of one cgroup in cores; None without a limit, or if it cannot be read."""
    try:
        quota, period = " ".join((folder / name).read_text() for name in names).split()
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
