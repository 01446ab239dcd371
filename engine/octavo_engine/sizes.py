"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)},
    **{f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int:
    """Bytes from `2GiB`, `512MiB`, `1.5GB` or a plain number; ValueError says what is allowed."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size: write a number with B, KiB, MiB, GiB or TiB, as in 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(size: float) -> str:
    """`16.1 GiB` from bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
