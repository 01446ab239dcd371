"""The header of a GGUF file that lies elsewhere, which holds all that a memory plan needs: everything but weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.downloads import incomplete_files
from octavo_engine.model.gguf.file import has_header

_FIRST = 1 << 20
"""Bytes of a file that are looked at first; a large vocabulary takes eight times as many."""


def is_stored(header: Path, size: int) -> bool:
    """Return True if `header` is there, for a file of `size` bytes."""
    return incomplete_files.size_of(header) == size


def store_header(pieces: Iterable[bytes], size: int, header: Path, name: str) -> None:
    """Write the header of the file `name` of `size` bytes into a sparse file of that size.

    `pieces`: the file from its beginning, of which no more is read than necessary. ModelLoadError if they are no GGUF
    file's, or if nothing can be stored.
    """
    beginning, enough = bytearray(), _FIRST
    for piece in pieces:
        beginning += piece
        if len(beginning) >= enough:
            if has_header(bytes(beginning), size, name):
                break
            enough *= 2
    try:
        header.parent.mkdir(parents=True, exist_ok=True)
        partial = incomplete_files.own(header)
        partial.write_bytes(beginning)
        os.truncate(partial, size)
        partial.replace(header)
    except OSError as error:
        raise ModelLoadError(
            f"{header}: cannot be stored: {error.strerror or error}; XDG_CACHE_HOME moves the cache"
        ) from error
