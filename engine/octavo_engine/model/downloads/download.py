"""What downloads from the hub and from S3 share: progress, the check for disk space, and a lock for each model."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO

from octavo_engine.errors import ModelLoadError
from octavo_engine.sizes import format_size

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_QUERY = re.compile(r"""(\bhttps?://[^\s?]+)\?\S*?(?=[\])}>'",.:;]*(\s|$))""")
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of a download in bytes. `total` 0: not known yet, or there is nothing to fetch."""

    done: int = 0
    total: int = 0
    note: str = ""
    complete: bool = False

    @property
    def ratio(self) -> float:
        """The progress from 0 to 1."""
        return 1.0 if self.complete else self.done / self.total if self.total else 0.0

    @property
    def detail(self) -> str:
        """The progress as text for people."""
        if not self.total:
            return self.note or ("nothing to fetch" if self.complete else "listing its files")
        return self.note or f"{format_size(self.done)} of {format_size(self.total)}"


Report = Callable[[DownloadProgress], None]


class Counter:
    """Adds up the bytes that several threads fetch, and reports each change in order."""

    def __init__(self, total: int, report: Report) -> None:
        self._done: dict[str, int] = {}
        self._total = total
        self._report = report
        self._lock = Lock()

    def at(self, file: str, done: int) -> None:
        """Note that `done` bytes of `file` are on the disk; they can be fewer than before if it is fetched again."""
        with self._lock:
            self._done[file] = done
            self._report(DownloadProgress(min(sum(self._done.values()), self._total), self._total))


def cache_home() -> Path:
    """Return the folder for files that can be fetched again: in XDG_CACHE_HOME, by default ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "octavo"


def check_room(model: str, folder: Path, needed: int, variable: str) -> None:
    """Raise ModelLoadError unless `needed` bytes are free at `folder`, which the variable `variable` sets."""
    existing = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise ModelLoadError(
            f"{model}: needs {format_size(needed)} of disk, {format_size(free)} are free at {folder}; free "
            f"{format_size(needed - free)} more, or set {variable} to a folder with room"
        )


def without_queries(text: str) -> str:
    """Return `text` without the queries of its URLs: a redirection's query is signed, and gives access to the file."""
    return _QUERY.sub(r"\1?...", text)


@contextmanager
def one_at_a_time(model: str, report: Report) -> Iterator[None]:
    """Wait while another program, perhaps a pod on another node, fetches `model` into the same cache.

    The lock is the kernel's (flock), which releases it when the process ends in any way. Some network file systems do
    not share it between nodes, although they grant it. Then several processes fetch at once, each into files of its
    own, which get their names when they are complete: the model is downloaded twice, but nothing is damaged.
    """
    file = _lock_file(model)
    if file is None:
        yield
        return
    with file:
        started = time.monotonic()
        while not _locked(file):
            seconds = time.monotonic() - started
            report(
                DownloadProgress(
                    note=f"another program fetches {model} into the same cache; waiting for {seconds:.0f} s"
                )
            )
            time.sleep(_POLL_SECONDS)
        yield


def _lock_file(model: str) -> IO[bytes] | None:
    folder = cache_home() / "locks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / hashlib.sha256(model.encode()).hexdigest()[:32]).open("ab")
    except OSError as error:
        log.debug("cannot create a lock in %s: %s", folder, error)
        return None


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        log.debug("cannot lock %s: %s", file.name, error)
    return True
