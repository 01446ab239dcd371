"""Guided decoding's hook into the loop: what a request may sample next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class MaskProvider(Protocol):
    """Knows which tokens the answers of some requests may consist of, such as a grammar's."""

    def guides(self, request_id: str) -> bool:
        """Whether this request's tokens are masked, from its first to its last."""

    def mask(self, request_id: str, answer: Sequence[int], drafts: Sequence[int]) -> Tensor:
        """Bits [1 + len(drafts), ceil(vocab / 32)], int32 on the host: which tokens may follow.

        The first line says what may follow `answer`, all tokens sampled so far, each other line what may follow one
        more of the `drafts`. It is asked while the device computes the logits. An exception ends the request.
        """
