"""Speculative decoding's hook into the scheduler: guesses of the tokens that a request samples next."""

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses draft tokens, all of which the next step verifies at once."""

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        """Tokens that may follow a request's `token_ids`, prompt and answer; empty without a guess.

        Called after each result, so it must be quick, and it must not raise. A wrong guess costs time, nothing else.
        """

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
