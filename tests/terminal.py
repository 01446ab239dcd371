"""Reads what a program writes to a terminal: the other end of `pty.openpty()`, which only the program has open."""

from __future__ import annotations

import os


def read_until(terminal: int, wanted: bytes) -> bytes:
    """Read up to `wanted`; AssertionError if the program ends without writing it."""
    shown = b""
    while wanted not in shown:
        part = _part(terminal)
        assert part, f"{wanted!r} is not in: {shown.decode()}"
        shown += part
    return shown


def rest_of(terminal: int) -> bytes:
    """Read until the program has ended: its last lines may come later than its end is seen."""
    return b"".join(iter(lambda: _part(terminal), b""))


def _part(terminal: int) -> bytes:
    """Return what there is, or nothing once no program has the terminal open any more: Linux has an error for that."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
