"""Counts the tokens of an answer's reasoning, for the details of its usage."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.output_parsing.answer_parts import PartEvent, PartGrown
from octavo_engine.text.tokenizer import Tokenizer


class ReasoningTokens:
    """The tokens of one answer's reasoning, counted as its outputs come.

    A mark that ends it may count as one more. Text that was held back, since it might have begun a mark, counts with
    the output that ends the doubt, all of whose tokens then count as reasoning.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.count = 0

    def add(self, text: str, token_ids: Sequence[int], events: Sequence[PartEvent]) -> None:
        """Count an output, of whose text the events were made."""
        grown = (event for event in events if isinstance(event, PartGrown) and event.part.kind == "reasoning")
        if thought := "".join(event.text for event in grown):
            at = text.find(thought)
            behind = len(text[at + len(thought) :].encode()) if at >= 0 else 0
            self.count += len(token_ids) - self._tokens_of_end(token_ids, behind)

    def _tokens_of_end(self, token_ids: Sequence[int], size: int) -> int:
        """Return how many of the last tokens lie within the last `size` bytes."""
        tokens = 0
        for token_id in reversed(token_ids):
            size -= len(self._tokenizer.token_bytes(token_id))
            if size < 0:
                break
            tokens += 1
        return tokens
