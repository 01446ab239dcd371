"""Writes a file whole or not at all: neither a full disk nor Ctrl-C leaves a part of it under its name."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from octavo_client.errors import ClientError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then give it that name; ClientError if it cannot be written.

    What is not a plain file, such as /dev/stdout, is written as it is, and so is a file of a read-only folder.
    """
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
            path.write_bytes(content)
        else:
            _replace(path, content)
    except OSError as error:
        raise ClientError(f"{path}: cannot be written: {error.strerror}") from None


def _replace(path: Path, content: bytes) -> None:
    beside = path.parent / f".octavo-{os.getpid()}"
    try:
        beside.write_bytes(content)
        if path.exists():
            beside.chmod(stat.S_IMODE(path.stat().st_mode))
        beside.replace(path)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
