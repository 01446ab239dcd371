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

    def masks(self, rows: Sequence[MaskRow]) -> Sequence[Tensor | Exception]:
        """Return each row's bits of allowed tokens, int32 [1 + drafts, ceil(vocab / 32)] on the host, or its error.

        The first line has the tokens that may follow the answer, each further line those that may follow one more of
        the drafts. This is called while the device computes the logits. An exception in a row's place ends only its
        request: NotAdmissibleError if the request asks for something that cannot be done.
        """
