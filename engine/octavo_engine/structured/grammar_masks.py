"""The masks of requests that ask for a grammar, computed by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from torch import Tensor

from octavo_engine.core.request import Request
from octavo_engine.structured.grammar import LIMITS, GrammarError
from octavo_engine.structured.mask_provider import MaskRow

_CACHED_GRAMMARS = 16
"""Compiled grammars that are kept for the next request that asks for the same: at most some 40 MB each."""
_MAX_FORCED = 4 << 10
"""The most bytes at the beginning of an answer about which a grammar leaves no choice. Each mask walks along them:
64 answers at the beginning of 32 KB took 0.4 s of CPU time in a step, of 4 KB 0.05 s."""
_BITS = 32


@dataclass(slots=True)
class _Answer:
    """The state of one answer's grammar."""

    matcher: Future[LLMatcher]
    consumed: int = 0
    """Tokens of the answer that the matcher knows."""


class GrammarMasks:
    """Knows which tokens may follow in each answer that has a grammar.

    Grammars are compiled on a thread, and their requests begin after that: a step of all requests does not wait for the
    grammar of one. The first one has to wait for the vocabulary as well, unless `prepare` was called before. All
    methods are called by one thread.
    """

    def __init__(self, load_vocabulary: Callable[[], LLTokenizer], vocab_size: int) -> None:
        self._words = -(-vocab_size // _BITS)
        self._load_vocabulary = load_vocabulary
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar")
        self._filler = LLExecutor(max(1, (os.cpu_count() or 1) // 2))
        self._first_filler = LLExecutor(1)
        """For first masks, so that those of a step do not wait for them."""
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._answers: dict[str, _Answer] = {}

    def prepare(self) -> None:
        """Begin to read the vocabulary, which takes about a second."""
        self._thread.submit(self._tokens)

    def add(self, request: Request) -> None:
        """Begin to compile the request's grammar, if it has one."""
        if (grammar := request.sampling.grammar) is not None:
            self._answers[request.request_id] = _Answer(self._thread.submit(self._matcher, grammar))

    def is_ready(self, request_id: str) -> bool:
        """Return True if the request's grammar is compiled or cannot be compiled, or if it has none."""
        answer = self._answers.get(request_id)
        return answer is None or answer.matcher.done()

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended, or never had a grammar."""
        if (answer := self._answers.pop(request_id, None)) is not None:
            answer.matcher.cancel()  # what is not begun is not compiled: grammars that are still wanted come sooner

    def guides(self, request_id: str) -> bool:
        """Return True if the request has a grammar."""
        return request_id in self._answers

    def masks(self, rows: Sequence[MaskRow]) -> list[Tensor | Exception]:
        """Return each row's bits, int32 [1 + drafts, words], or its error; rows are computed in parallel."""
        followed = [self._follow(row) for row in rows]
        starts = [0, *accumulate(1 + len(row.drafts) for row in rows)]
        bits = self._fill(
            [
                (matcher, start, list(row.drafts))
                for matcher, start, row in zip(followed, starts, rows, strict=False)
                if isinstance(matcher, LLMatcher)
            ],
            starts[-1],
            self._filler,
        )
        found: list[Tensor | Exception] = []
        for matcher, (start, end) in zip(followed, pairwise(starts), strict=True):
            if isinstance(matcher, Exception):
                found.append(matcher)
            elif matcher.is_error():
                found.append(GrammarError(_reason(matcher)))
            else:
                found.append(bits[start:end, : self._words])
        return found

    def _fill(self, asked: list[tuple[LLMatcher, int, list[int]]], lines: int, filler: LLExecutor) -> Tensor:
        """Bits [lines, words] that each matcher writes from its line on: one line, and one for each draft."""
        words = self._words if self._vocabulary is None else -(-self._vocabulary.vocab_size // _BITS)
        bits = torch.full((lines, words), -1, dtype=torch.int32)
        place = bits.data_ptr(), words * bits.itemsize, lines
        if plain := [(matcher, line) for matcher, line, drafts in asked if not drafts]:
            filler.unsafe_compute_mask_ptr(plain, *place)
        if drafting := [each for each in asked if each[2]]:
            filler.unsafe_compute_mask_ptr_with_draft_token(drafting, *place)
        return bits

    def _follow(self, row: MaskRow) -> LLMatcher | Exception:
        """The row's matcher, after all tokens of its answer, or the exception that ends this row's request."""
        answer = self._answers[row.request_id]
        try:
            matcher = answer.matcher.result()
        except Exception as error:  # noqa: BLE001  # whatever the grammar or the vocabulary did
            return error
        new = list(row.answer[answer.consumed :])
        answer.consumed = len(row.answer)
        if new:
            matcher.consume_tokens(new)
        return matcher

    def _matcher(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of an answer."""
        if (known := self._compiled.pop(grammar, None)) is None:
            known = self._compile(grammar)
        self._compiled[grammar] = known
        if len(self._compiled) > _CACHED_GRAMMARS:
            self._compiled.popitem(last=False)
        return known.deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        """Compile a grammar and compute its first mask, which may take longer than any later one."""
        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            self._fill([(matcher, 0, [])], 1, self._first_filler)
        if matcher.is_error():
            raise GrammarError(_reason(matcher))
        if (forced := len(matcher.compute_ff_bytes())) > _MAX_FORCED:
            raise GrammarError(
                f"it leaves no choice about the first {forced} bytes of the answer; at most {_MAX_FORCED} are allowed"
            )
        return matcher

    def _tokens(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = self._load_vocabulary()
        return self._vocabulary


def _reason(matcher: LLMatcher) -> str:
    return matcher.get_error().strip()[:500] or f"the grammar stopped: {matcher.stop_reason()}"
