"""The residual stream: what each part of a layer reads, normalised, and adds to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ResidualSum:
    """A sum that is not computed yet: the next norm computes it in the same pass. [T, hidden] each."""

    product: Tensor
    residual: Tensor


ResidualStream = Tensor | ResidualSum
"""[T, hidden]"""


@dataclass(frozen=True, slots=True)
class ShortcutStream:
    """A residual stream between two layers, and a shortcut's result, added after the second. [T, hidden] each."""

    stream: ResidualStream
    later: Tensor


LayerStream = ResidualStream | ShortcutStream
"""The values that a layer passes to the next."""


def summed(stream: ResidualStream) -> Tensor:
    """Return the residual stream as one tensor [T, hidden], added up if that has not been done."""
    return stream if isinstance(stream, Tensor) else stream.residual + stream.product
