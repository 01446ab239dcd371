"""Opens a model's small files safely: special files do not block, and memory is bounded.

A model's folder is not trusted: a named pipe would block, a device has no end, and a link can lead to a file that
should stay secret.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from octavo_engine.errors import ModelLoadError


def has_file(path: Path) -> bool:
    """Return True if there is a file; ModelLoadError if it is something else, such as a pipe or a dead link."""
    if path.is_file():
        return True
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ModelLoadError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    raise ModelLoadError(f"{path}: is not a file but {_kind(path)}; put the file there, or remove it")


def open_file(path: Path) -> BinaryIO:
    """Return the file at `path` to read from; FileNotFoundError if there is none, ModelLoadError if it is no file."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer is opened at once
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ModelLoadError(f"{_shown(path)}: cannot be read: {error.strerror}") from None
    file = os.fdopen(opened, "rb")
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        file.close()
        raise ModelLoadError(f"{path}: is not a file but {_kind(path)}; put the file there")
    return file


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a file of at most `most` bytes; FileNotFoundError if absent, ModelLoadError if larger."""
    with open_file(path) as file:
        try:
            content = file.read(most + 1)
        except OSError as error:
            raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None
    if content is None:  # some files of /proc have no content until an event
        raise ModelLoadError(f"{path}: cannot be read: it has no content yet")
    if len(content) > most:
        raise ModelLoadError(f"{path}: has more than {most} bytes, which is too large for such a file")
    return content


def read_own_file(path: Path, most: int) -> bytes:
    """Read a file like `read_file`, with a ModelLoadError also if it is a link that leads out of the model.

    For files whose content clients can see. A link within the folder is the model's own, and so is one into the cache
    of Hugging Face that the folder is a snapshot of.
    """
    home = path.parent.resolve()
    if home.parent.name == "snapshots":
        home = home.parent.parent
    if not (target := path.resolve()).is_relative_to(home):
        raise ModelLoadError(f"{path}: is a link to {target}, out of the model's folder; copy the file into it")
    return read_file(path, most)


def _kind(path: Path) -> str:
    try:
        mode = path.stat().st_mode
    except OSError:
        return "a link that leads to nothing"
    kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def _shown(path: Path) -> str:
    return str(path.parent / path.name[:200])
