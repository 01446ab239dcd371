"""Checks scales while they are loaded, and quantizes weights part by part, without a second copy of a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from octavo_engine.model.checkpoint import Rows, write

_PIECE = 1 << 20
"""The elements that are quantized at once; each takes up to 24 bytes meanwhile."""

QuantizeRows = Callable[[Tensor], tuple[Tensor, ...]]
"""A function from a weight [rows, columns] to its values, its scales [rows, 1 or groups], and further data of rows."""


def quantize_into(
    quantize: QuantizeRows, others: tuple[Tensor, ...], weight: Tensor, rows: Rows, values: Tensor
) -> None:
    """Quantize `values` [n, columns] into these rows of `weight` and of `others`, its scales first, on their device."""
    for place, part in in_parts(rows, values, _PIECE):
        for target, found in zip((weight, *others), quantize(part.to(weight.device)), strict=True):
            write(target, place, found)


def in_parts(rows: Rows, values: Tensor, most: int) -> Iterator[tuple[Rows, Tensor]]:
    """Yield `values` [n, columns] in parts of complete rows and at most `most` elements, or one row, each with its own
    rows of `rows` before it."""
    step = max(1, most // values.shape[1])
    for first in range(0, len(values), step):
        part = values[first : first + step]
        if isinstance(rows, Tensor):
            yield rows[first : first + step], part
        else:
            yield slice(rows.start + first, rows.start + first + len(part)), part


def write_scales(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Cast and copy scales; ValueError unless all are positive and finite."""
    check_scales(values)
    write(target, rows, values)


def write_nonnegative(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Cast and copy scales; ValueError unless all are finite and not negative. In 16 bits a tiny one becomes zero."""
    wide = values.float()
    if not bool(((wide >= 0) & wide.isfinite()).all()):
        raise ValueError("has scales that are negative or not finite")
    write(target, rows, values)


def check_scales(values: Tensor, least: float = 0) -> None:
    """Raise ValueError unless all scales are above `least` and finite: with others, answers would be wrong."""
    wrong = ~((values > least) & values.isfinite())
    if wrong.any():
        raise ValueError(f"has {int(wrong.sum())} scales that are not positive numbers, such as {values[wrong][0]:g}")
