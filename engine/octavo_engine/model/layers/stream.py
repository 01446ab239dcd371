"""The residual stream: what each part of a layer reads, normalised, and adds to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum that nobody has computed yet: the next norm does, in the same pass. [T, hidden] each."""

    product: Tensor
    residual: Tensor


Stream = Tensor | Sum
"""[T, hidden]"""


def added_up(stream: Stream) -> Tensor:
    """[T, hidden], computed if it has to be."""
    return stream if isinstance(stream, Tensor) else stream.residual + stream.product
