"""Checks scales while they are loaded, and quantizes weights part by part, without a second copy of a weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from octavo_engine.model.checkpoint.tensors import Rows, write

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


def write_scales(target: Tensor, rows: Rows, values: Tensor, *, or_zero: bool = False) -> None:
    """Cast and copy scales that `check_scales` accepts."""
    check_scales(values, or_zero=or_zero)
    write(target, rows, values)


def check_scales(values: Tensor, least: float = 0, *, or_zero: bool = False) -> None:
    """Raise ValueError unless all scales are above `least` and finite: with others, answers would be wrong.

    `or_zero`: they may be 0, as those of groups of zeros, and tiny ones that were rounded to 16 or 8 bits.
    """
    wide = values.float()
    wrong = ~(((wide > least) | (wide == 0) & or_zero) & wide.isfinite())
    if wrong.any():
        wanted = "positive numbers or 0" if or_zero else "positive numbers"
        raise ValueError(f"has {int(wrong.sum())} scales that are not {wanted}, such as {wide[wrong][0]:g}")
