"""The interface from which the scheduler gets draft tokens: guesses of the tokens that a request samples next."""

from collections.abc import Sequence
from typing import Protocol


class Proposer(Protocol):
    """Guesses draft tokens, all of which the next step verifies at once."""

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        """Return guesses of the tokens after a request's prompt and answer, or none. Must be quick and never raise."""

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
