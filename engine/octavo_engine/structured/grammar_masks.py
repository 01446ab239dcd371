"""Computes the masks of requests with a grammar, by llguidance (https://github.com/guidance-ai/llguidance)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from torch import Tensor

from octavo_engine.core.request import Request
from octavo_engine.runner.cores import usable_cores
from octavo_engine.structured.fair_thread import FairThread
from octavo_engine.structured.grammar import LIMITS, GrammarError, reason, without_forcing
from octavo_engine.structured.grammars_in_use import GrammarsInUse, KeptGrammars
from octavo_engine.structured.mask_provider import MaskRow, RowMasks

_BITS = 32


@dataclass(slots=True, eq=False)
class _Answer:
    """The state of one answer's grammar. Instances are compared by identity: requests may have the same grammar."""

    tenant: str
    grammar: str
    matcher: Future[LLMatcher] | None = None
    """The matcher, once it is compiled; None while other grammars leave no memory for it."""
    consumed: int = 0
    """Number of the answer's tokens that the matcher has consumed."""


class GrammarMasks:
    """Computes which tokens may follow in each answer that has a grammar.

    Grammars are compiled in a thread, in which tenants take turns. A request begins after its grammar is compiled, so
    that no step waits for a compilation. The first compilation waits for the vocabulary as well, unless `prepare` was
    called before. All methods must be called by the same thread.
    """

    def __init__(self, load_vocabulary: Callable[[], LLTokenizer], vocab_size: int) -> None:
        self._words = -(-vocab_size // _BITS)
        self._load_vocabulary = load_vocabulary
        self._thread = FairThread("octavo-grammar")
        self._executor = LLExecutor(max(1, usable_cores() // 2))
        self._first_executor = LLExecutor(1)
        """Computes the first masks of grammars, for which the masks of a step must not wait."""
        self._vocabulary: LLTokenizer | None = None
        self._kept = KeptGrammars()
        self._in_use = GrammarsInUse()
        self._answers: dict[str, _Answer] = {}
        self._waiting: dict[str, deque[_Answer]] = {}
        """Each tenant's answers whose grammars wait for memory."""

    def prepare(self) -> None:
        """Begin to load the vocabulary in the thread, which takes about a second."""
        self._thread.submit("", self._tokens)

    def add(self, request: Request) -> None:
        """Have the request's grammar compiled, if it has one, as soon as other grammars leave memory for it."""
        if (grammar := request.sampling.grammar) is not None:
            answer = self._answers[request.request_id] = _Answer(request.tenant, grammar)
            self._waiting.setdefault(request.tenant, deque()).append(answer)
            self._compile_waiting(request.tenant)

    def _compile_waiting(self, tenant: str) -> None:
        """Have the tenant's waiting grammars compiled, as many as there is memory for now."""
        waiting = self._waiting.get(tenant, deque())
        while waiting and self._in_use.take(tenant, waiting[0].grammar):
            answer = waiting.popleft()
            answer.matcher = self._thread.submit(tenant, partial(self._matcher, tenant, answer.grammar))
        if not waiting:
            self._waiting.pop(tenant, None)

    def is_ready(self, request_id: str) -> bool:
        """Return True if the request's grammar is compiled or cannot be compiled, or if it has none."""
        answer = self._answers.get(request_id)
        return answer is None or (answer.matcher is not None and answer.matcher.done())

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended, with or without a grammar."""
        if (answer := self._answers.pop(request_id, None)) is None:
            return
        if answer.matcher is None:
            self._waiting[answer.tenant].remove(answer)
        else:
            answer.matcher.cancel()  # a compilation that has not begun is skipped, so that others begin sooner
            self._in_use.release(answer.tenant, answer.grammar)
        for tenant in sorted(self._waiting, key=self._in_use.bytes_of):
            self._compile_waiting(tenant)

    def guides(self, request_id: str) -> bool:
        """Return True if the request has a grammar."""
        return request_id in self._answers

    def masks(self, rows: Sequence[MaskRow]) -> RowMasks:
        """Return the masks of all rows, computed in parallel, and the exceptions that end requests."""
        followed = [self._follow(row) for row in rows]
        starts = [0, *accumulate(1 + len(row.drafts) for row in rows)]
        bits = self._fill(
            [
                (matcher, start, list(row.drafts))
                for matcher, start, row in zip(followed, starts, rows, strict=False)
                if isinstance(matcher, LLMatcher)
            ],
            starts[-1],
            self._executor,
        )
        errors: dict[int, Exception] = {}
        for index, matcher in enumerate(followed):
            if isinstance(matcher, Exception):
                errors[index] = matcher
            elif matcher.is_error():
                errors[index] = GrammarError(reason(matcher))
        return RowMasks(bits[:, : self._words].contiguous(), errors)

    def _fill(self, asked: list[tuple[LLMatcher, int, list[int]]], lines: int, executor: LLExecutor) -> Tensor:
        """Return bits [lines, words], computed by `executor`.

        Each entry of `asked` is a matcher, the first line that it writes, and its draft tokens: it writes one line, and
        one more for each draft token.
        """
        words = self._words if self._vocabulary is None else -(-self._vocabulary.vocab_size // _BITS)
        bits = torch.full((lines, words), -1, dtype=torch.int32)
        target = bits.data_ptr(), words * bits.itemsize, lines
        if plain := [(matcher, line) for matcher, line, drafts in asked if not drafts]:
            executor.unsafe_compute_mask_ptr(plain, *target)
        if drafting := [each for each in asked if each[2]]:
            executor.unsafe_compute_mask_ptr_with_draft_token(drafting, *target)
        return bits

    def _follow(self, row: MaskRow) -> LLMatcher | Exception:
        """Return the row's matcher after it has consumed the whole answer, or the exception that ends its request."""
        answer = self._answers[row.request_id]
        try:
            if answer.matcher is None:
                raise RuntimeError("a mask was asked for before its grammar was compiled")
            matcher = answer.matcher.result()
        except Exception as error:  # noqa: BLE001  # any error of the grammar or of the vocabulary
            return error
        new = list(row.answer[answer.consumed :])
        answer.consumed = len(row.answer)
        if new:
            matcher.consume_tokens(new)
        return matcher

    def _matcher(self, tenant: str, grammar: str) -> LLMatcher:
        """Return a matcher at the beginning of an answer. Called in the thread, which alone uses `_kept`."""
        matcher = self._kept.pop(grammar) or self._compile(grammar)
        self._kept.keep(tenant, grammar, matcher)
        return matcher.deep_copy()

    def _compile(self, grammar: str) -> LLMatcher:
        """Compile a grammar and compute its first mask, which may take longer than any later one."""
        matcher = LLMatcher(self._tokens(), without_forcing(grammar), log_level=0, limits=LIMITS)
        if not matcher.is_error():
            self._fill([(matcher, 0, [])], 1, self._first_executor)
        if matcher.is_error():
            raise GrammarError(reason(matcher))
        return matcher

    def _tokens(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = self._load_vocabulary()
        return self._vocabulary
