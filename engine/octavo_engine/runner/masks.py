"""The masks of guided decoding, which name the tokens that a row may sample."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """The masks of M places of a step: one tensor, so that the sampler copies and applies them all at once."""

    places: list[int]
    """[M] the indices of the places among all that the step samples, ascending."""
    bits: Tensor
    """[M, ceil(vocab / 32)] int32 on the host, as llguidance and XGrammar write them: the lowest bit of the first word
    is token 0, and a token whose bit is 0 is not sampled."""

    def part(self, part: slice) -> Masks:
        """Return the masks of a slice of the places."""
        first, end = bisect_left(self.places, part.start), bisect_left(self.places, part.stop)
        return Masks([place - part.start for place in self.places[first:end]], self.bits[first:end])

    def __bool__(self) -> bool:
        """Return True if any place has a mask."""
        return bool(self.places)


NO_MASKS = Masks([], torch.empty(0, 0, dtype=torch.int32))
