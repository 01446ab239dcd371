"""Files that are still being downloaded, in a folder that several processes may fill at once, perhaps without a lock.

Each process writes into a file of its own, which gets its final name when it is complete. A process takes over what an
earlier one has begun by renaming it, which only one process can do. If the earlier process is still alive, both write
the same bytes to the same places, and the earlier one finds that its file is gone: then it begins again, or finds the
complete file.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path


def own(file: Path) -> Path:
    """Return the path at which this process downloads `file`."""
    host = re.sub(r"[^\w-]", "-", socket.gethostname())  # without dots: see `begun`
    return file.with_name(f"{file.name}.{host}-{os.getpid()}.incomplete")


def take(file: Path, size: int) -> Path:
    """Return the path at which this process downloads `file` of `size` bytes, after taking over an earlier download."""
    mine = own(file)
    for earlier in begun(file):
        with suppress(OSError):  # another process was faster, or open files cannot be renamed here
            if earlier.stat().st_size > size:
                earlier.unlink()
                continue
            earlier.replace(mine)
            break
    return mine


def begun(file: Path) -> list[Path]:
    """Return all incomplete downloads of `file`, largest first; those of `file`.index.json do not count."""
    name = re.compile(re.escape(file.name) + r"\.[\w-]+\.incomplete")
    paths = [path for path in file.parent.iterdir() if name.fullmatch(path.name)] if file.parent.is_dir() else []
    return sorted(paths, key=size_of, reverse=True)


def clear(file: Path) -> None:
    """Remove all other incomplete downloads of `file`, now that it is complete."""
    for other in begun(file):
        with suppress(OSError):
            other.unlink()


def size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 if there is no such file."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
