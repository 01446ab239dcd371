"""Parsing and formatting of sizes in bytes, such as 2GiB."""

from __future__ import annotations

import math
import re

_UNITS = {
    "": 1,
    "B": 1,
    **{f"{p}iB": 1024**n for n, p in enumerate("KMGT", 1)},
    **{f"{p}B": 1000**n for n, p in enumerate("KMGT", 1)},
}


def parse_size(text: str) -> int:
    """Return the bytes in `2GiB`, `512MiB`, `1.5GB` or a plain number; ValueError for any other text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a size: write a number with B, KiB, MiB, GiB or TiB, as in 2GiB")
    if math.isinf(size := float(match[1]) * _UNITS[match[2]]):
        raise ValueError(f"{text[:40]!r} is not a size: it is larger than any memory")
    return int(size)


def format_size(size: float) -> str:
    """Format a number of bytes for people, such as `16.1 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
