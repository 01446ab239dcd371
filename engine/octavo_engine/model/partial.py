"""Files in the making, in a folder that several programs may fill at once, and not always with a lock that works.

Each process writes into a file of its own, which gets its name when it is complete. What an earlier one has begun is
taken over by renaming it, which only one can. Should the earlier one still be alive, both write the same bytes to the
same places, and it finds its file gone: it begins anew, or sees that the file is there.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path


def own(file: Path) -> Path:
    """Where this process makes `file`."""
    host = re.sub(r"[^\w-]", "-", socket.gethostname())  # without dots: see `begun`
    return file.with_name(f"{file.name}.{host}-{os.getpid()}.incomplete")


def take(file: Path, size: int) -> Path:
    """Where this process makes `file` of `size` bytes; the most that was begun of it before lies there already."""
    mine = own(file)
    for found in begun(file):
        with suppress(OSError):  # another was faster, or here nobody may rename what is open elsewhere
            if found.stat().st_size > size:
                found.unlink()
                continue
            found.replace(mine)
            break
    return mine


def begun(file: Path) -> list[Path]:
    """What was begun of `file` by anyone, largest first. Those of `file`.index.json are none of `file`'s."""
    name = re.compile(re.escape(file.name) + r"\.[\w-]+\.incomplete")
    found = [path for path in file.parent.iterdir() if name.fullmatch(path.name)] if file.parent.is_dir() else []
    return sorted(found, key=size_of, reverse=True)


def clear(file: Path) -> None:
    """Removes what else was begun of `file`, now that it is complete."""
    for found in begun(file):
        with suppress(OSError):
            found.unlink()


def size_of(file: Path) -> int:
    """In bytes; 0 if there is no such file."""
    try:
        return file.stat().st_size
    except OSError:
        return 0
