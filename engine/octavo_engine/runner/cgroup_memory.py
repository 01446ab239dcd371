"""The memory limit of the cgroup that this process is in: a container's, or that of a systemd unit with MemoryMax."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")
_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By controller ("": cgroup v2, "memory": v1): the files of limit and usage, and the line of memory.stat with the bytes
of caches that the kernel can drop."""


def cgroup_memory(root: Path = ROOT, own: Path = SELF) -> tuple[int, int] | None:
    """Return the tightest limit in bytes and the bytes left below it; None if no cgroup limits this process.

    `root` is where cgroups are mounted; `own` lists this process's cgroups. In a container the mounted root is usually
    the container's own cgroup. Elsewhere the limit may be set on the process's cgroup or on one above it. If several
    have limits, the bytes left are those of the cgroup that has the fewest left.
    """
    found = [limit for folder, names in _folders(root, own) if (limit := _limit(folder, *names)) is not None]
    return (min(limit for limit, _ in found), min(left for _, left in found)) if found else None


def _folders(root: Path, own: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield the folders of this process's cgroup and of all above it, for v2 and v1, with the names of their files."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    paths = {"": "/", "memory": "/"}
    paths |= {name: path for _, names, path in (line.split(":", 2) for line in lines) for name in names.split(",")}
    for controller, files in _FILES.items():
        mounted = root / controller
        inside = Path(paths[controller].lstrip("/"))
        # Without a cgroup namespace a container sees a path of the host here, which does not exist below its root.
        for part in (inside, *inside.parents):
            yield mounted / part, files


def _limit(folder: Path, limit_name: str, usage_name: str, droppable: str) -> tuple[int, int] | None:
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
