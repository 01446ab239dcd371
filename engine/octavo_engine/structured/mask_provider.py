"""The interface between guided decoding and the engine loop: masks of the tokens that a request may sample next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo_engine.core.request import Request


@dataclass(frozen=True, slots=True)
class MaskRow:
    """One row of a step that needs a mask."""

    request_id: str
    answer: Sequence[int]
    """All tokens sampled so far."""
    drafts: Sequence[int]
    """The draft tokens that follow the answer in this step."""


@dataclass(frozen=True, slots=True)
class RowMasks:
    """The masks of some rows."""

    bits: Tensor
    """Bits of allowed tokens, int32 [lines, ceil(vocab / 32)], contiguous on the host. Each row in its order has a line
    for the token after its answer, and one for the token after each of its drafts."""
    errors: dict[int, Exception]
    """The rows without masks, by index; their lines mean nothing."""


class MaskProvider(Protocol):
    """Computes which tokens may follow in the answers of some requests, such as those with a grammar."""

    def prepare(self) -> None:
        """Begin work that the first mask needs and that takes long; return at once."""

    def add(self, request: Request) -> None:
        """Note that a request was accepted."""

    def is_ready(self, request_id: str) -> bool:
        """Return True if the first mask of an accepted request can be computed without a wait, or if it needs none."""

    def remove(self, request_id: str) -> None:
        """Note that a request has ended."""

    def guides(self, request_id: str) -> bool:
        """Return True if this request's tokens are masked, from its first to its last."""

    def masks(self, rows: Sequence[MaskRow]) -> RowMasks:
        """Return the masks of all rows. This is called while the device computes the logits.

        A row may have an exception instead, which ends its request alone: NotAdmissibleError if the request asks for
        something that cannot be done.
        """
