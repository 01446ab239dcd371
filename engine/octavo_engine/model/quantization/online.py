"""Quantizing weights while they are loaded, in pieces, so that there is never a second copy of one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo_engine.model.checkpoint import Rows, write

_PIECE = 1 << 20
"""Elements that are quantized at once: each takes up to 13 bytes meanwhile."""

QuantizeRows = Callable[[Tensor], tuple[Tensor, Tensor]]
"""A weight [rows, columns] to its values and its scales [rows, 1]."""


def quantize_into(quantize: QuantizeRows, scale: Tensor, weight: Tensor, rows: Rows, values: Tensor) -> None:
    """Quantize `values` [n, columns] into these rows of `weight` and of `scale`, on their device."""
    step = max(1, _PIECE // values.shape[1])
    for first in range(0, len(values), step):
        part = values[first : first + step].to(weight.device)
        place = rows[first : first + step] if isinstance(rows, Tensor) else _consecutive(rows, first, len(part))
        quantized, found = quantize(part)
        write(weight, place, quantized)
        write(scale, place, found)


def _consecutive(rows: slice, first: int, count: int) -> slice:
    return slice(rows.start + first, rows.start + first + count)
