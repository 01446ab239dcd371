"""Dequantizes a weight in pieces of complete rows, so that only one piece of it is in float32 at a time."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

PIECE_BYTES = 10
"""The most bytes for a number of a piece: its code as a byte and as an index, and the number in float32."""
_PIECE = 1 << 20
"""The numbers of a piece; it has at least one row."""


def dequantize_rows(numbers: Callable[[slice], Tensor], rows: slice, out: Tensor) -> None:
    """Fill `rows` of `out` [out, in] with their `numbers`, a function from rows to float32 [rows, in]."""
    step = _rows_of_a_piece(out.shape[1])
    for first in range(rows.start, rows.stop, step):
        piece = slice(first, min(first + step, rows.stop))
        out[piece] = numbers(piece)


def piece_size(rows: int, columns: int) -> int:
    """Return the numbers of the largest piece of so many rows."""
    return min(rows, _rows_of_a_piece(columns)) * columns


def _rows_of_a_piece(columns: int) -> int:
    return max(1, _PIECE // columns)
