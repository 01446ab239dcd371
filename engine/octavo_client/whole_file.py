"""Writes a file whole or not at all: neither a full disk nor Ctrl-C leaves a part of it under its name."""

from __future__ import annotations

import os
from pathlib import Path

from octavo_client.errors import ClientError


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` beside `path`, then give it that name; ClientError if it cannot be written.

    What is not a plain file, such as /dev/stdout, is written as it is.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise ClientError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)
