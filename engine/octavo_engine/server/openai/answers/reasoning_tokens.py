"""Counts the tokens of an answer's reasoning, which the usage reports."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.output_parsing.answer_parts import PartEvent, PartGrown
from octavo_engine.text.tokenizer import Tokenizer


class ReasoningTokens:
    """Counts the tokens of one answer's reasoning as its outputs arrive.

    The mark that ends the reasoning may be counted, too. Text that is held back, as it may be the beginning of a mark,
    is counted with a later output, all of whose tokens then count as reasoning.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.count = 0

    def add(self, text: str, token_ids: Sequence[int], events: Sequence[PartEvent]) -> None:
        """Count the reasoning in an output; `events` are those that its text caused."""
        grown = (event for event in events if isinstance(event, PartGrown) and event.part.kind == "reasoning")
        if reasoning := "".join(event.text for event in grown):
            at = text.find(reasoning)
            behind = len(text[at + len(reasoning) :].encode()) if at >= 0 else 0
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
