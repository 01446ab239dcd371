"""A cluster's traces on the host: a folder in the user's cache and a control group.

They are removed with the cluster, or by a later one if the process that should have done so was killed. The folder has
a lock file. Every process that keeps the cluster alive (the janitor, and those it starts) holds the lock, so a folder
whose lock is free belongs to a cluster that has ended.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .layout import user_cache

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE = 60.0
"""Seconds in which the kernel has to be done with killed processes, so that their control groups can go."""


@dataclass(frozen=True)
class State:
    """The folder of one cluster, and the descriptor of its lock."""

    folder: Path
    lock: int


def create() -> State:
    """Make a locked state folder and its control group; sweep what earlier clusters left behind."""
    with _registry() as folders:
        for abandoned in folders.iterdir():
            if abandoned.is_dir() and not _locked(abandoned):
                sweep(abandoned)
        folder = Path(tempfile.mkdtemp(dir=folders))
        lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    for hierarchy in _hierarchies():
        (hierarchy / control_group(folder)).mkdir(exist_ok=True)
    return State(folder, lock)


def control_group(folder: Path) -> str:
    """Return the name, below the root of each hierarchy, of the group in which this cluster's pods are."""
    return f"octavo-{folder.name}"


def sweep(folder: Path) -> None:
    """Remove a cluster's control groups and folder; its processes are dead, or dying."""
    for hierarchy in _hierarchies():
        _remove_group(hierarchy / control_group(folder))
    shutil.rmtree(folder, ignore_errors=True)


def leftovers(folder: Path) -> list[Path]:
    """Return the paths that `sweep` could not remove."""
    groups = [hierarchy / control_group(folder) for hierarchy in _hierarchies()]
    return [path for path in (folder, *groups) if path.exists()]


@contextlib.contextmanager
def _registry() -> Iterator[Path]:
    """The folder of all state folders, for one process at a time."""
    folders = user_cache() / "run"
    folders.mkdir(parents=True, exist_ok=True)
    with (folders / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folders


def _locked(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _hierarchies() -> list[Path]:
    """Return the root of each mounted control group hierarchy: several with cgroup v1, one with v2."""
    kinds = (line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines())
    return [
        Path(place) for place, kind in kinds if kind in ("cgroup", "cgroup2") and Path(place).is_relative_to(CGROUPS)
    ]


def _remove_group(group: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    for folder, _, _ in os.walk(group, topdown=False):
        while True:
            try:
                Path(folder).rmdir()
            except FileNotFoundError:
                break
            except OSError:  # busy: processes in it are still dying
                if time.monotonic() > deadline:
                    return
                time.sleep(0.05)
            else:
                break
