"""Rows of words as a table of aligned columns, as kubectl prints them."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return one line for the header and for each row, columns three spaces apart; the last column is not padded."""
    every = [header, *rows]
    widths = [max(len(row[index]) for row in every) for index in range(len(header))]
    lines = ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]
    return "\n".join(lines) + "\n"
