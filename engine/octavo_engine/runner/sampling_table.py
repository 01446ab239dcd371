"""The sampling parameters of the state table's rows: columns on the device, and flags for what each row needs.

Columns are written when a request takes a row, and a step gathers those of its rows on the device. The host reads the
flags alone, to skip operations that no row of a step asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import torch
from torch import Tensor

from octavo_engine.core.step import NewRow
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.sampling_params import SamplingParams

_GREEDY_BELOW = 1e-5
"""A temperature below this means greedy, as in vLLM: dividing by it would leave float32's range."""

DRAWS, FILTERS, PENALIZES, BIASES, BANS, LOGPROBS, ALLOWS, BAD_WORDS = (1 << bit for bit in range(8))
"""Flags for the operations that sampling a row needs besides finding the largest logit: drawing by a random number;
top-k, top-p or min-p; penalties; biases added to logits; stop tokens forbidden before min_tokens; log probabilities;
allowed_token_ids; bad_words."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The R places of a step that are sampled: one for most rows, several for a row with draft tokens."""

    rows: list[int]
    """[R] the places' rows in the state table."""
    positions: list[int]
    """[R] the position that each place's token will have in its sequence."""
    rows_device: Tensor
    """[R] int64"""
    positions_device: Tensor
    """[R] int64"""
    masks: Masks = NO_MASKS

    def part(self, part: slice) -> SampledRows:
        """Return the places of a slice."""
        masks = self.masks.part(part)
        return SampledRows(
            self.rows[part], self.positions[part], self.rows_device[part], self.positions_device[part], masks
        )


@dataclass(frozen=True, slots=True)
class ParameterColumns:
    """The parameters of R rows, each [R] on the device: float32, and int64 for the last three.

    The order is that of the state table's columns. Triton compiles kernels by the alignment of each tensor: the first
    of the floats, and the first and third of the integers, are aligned to 16 bytes for any R.
    """

    temperatures: Tensor
    """0 means greedy."""
    top_ps: Tensor
    min_ps: Tensor
    repetition_penalties: Tensor
    frequency_penalties: Tensor
    presence_penalties: Tensor
    seeds: Tensor
    prompt_lens: Tensor
    top_ks: Tensor
    """0 means no limit."""


@dataclass(frozen=True, slots=True)
class BadWords:
    """The W token sequences that a row must not generate, on the device."""

    begins: Tensor
    """[W, L] int64: each sequence without its last token, padded with -1 in front to the longest length."""
    lasts: Tensor
    """[W] int64: each sequence's last token."""


_FLOATS, _INTS = 6, 3


class SamplingTable:
    """The sampling parameters of all rows of the state table."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._device = device
        self._floats = torch.zeros(_FLOATS, rows, dtype=torch.float32, device=device)
        self._ints = torch.zeros(_INTS, rows, dtype=torch.int64, device=device)
        self._needs = [0] * rows
        self._free_from = [0] * rows
        """The first position at which a row's stop tokens are allowed."""
        self._top_logprobs = [0] * rows
        self._stop_tokens: dict[int, Tensor] = {}
        self._biases: dict[int, tuple[Tensor, Tensor]] = {}
        """Tokens and the biases added to their logits, by row."""
        self._allowed: dict[int, Tensor] = {}
        self._bad_words: dict[int, BadWords] = {}
        self._prompt_lens = [0] * rows

    def begin(self, new_rows: Sequence[NewRow], seeds: Sequence[int]) -> None:
        """Write the parameters of requests that take rows; `seeds`, of 64 bits each, seed their random numbers."""
        device, params = self._device, [new.sampling for new in new_rows]
        rows = to_device([new.row for new in new_rows], device)
        floats = [
            *(each.temperature if _draws(each) else 0.0 for each in params),
            *(each.top_p for each in params),
            *(each.min_p for each in params),
            *(each.repetition_penalty for each in params),
            *(each.frequency_penalty for each in params),
            *(each.presence_penalty for each in params),
        ]
        ints = [*map(_signed, seeds), *(new.prompt_len for new in new_rows), *(each.top_k for each in params)]
        self._floats.index_copy_(1, rows, to_device(floats, device, torch.float32).view(_FLOATS, -1))
        self._ints.index_copy_(1, rows, to_device(ints, device).view(_INTS, -1))
        for new in new_rows:
            self._begin_on_host(new.row, new.sampling, new.prompt_len)

    def _begin_on_host(self, row: int, params: SamplingParams, prompt_len: int) -> None:
        self._needs[row] = needs_of(params)
        self._free_from[row] = prompt_len + params.min_tokens
        self._prompt_lens[row] = prompt_len
        self._top_logprobs[row] = params.logprobs or 0
        if params.allowed_token_ids:
            self._allowed[row] = to_device(params.allowed_token_ids, self._device)
        if params.bad_words_token_ids:
            self._bad_words[row] = self._bad_words_of(params.bad_words_token_ids)
        if params.min_tokens and params.stop_token_ids:
            self._stop_tokens[row] = to_device(params.stop_token_ids, self._device)
        if params.logit_bias:
            tokens, biases = zip(*params.logit_bias, strict=True)
            self._biases[row] = to_device(tokens, self._device), to_device(biases, self._device, torch.float32)

    def _bad_words_of(self, words: Sequence[Sequence[int]]) -> BadWords:
        longest = max(map(len, words)) - 1
        begins = [token for word in words for token in (*[-1] * (longest + 1 - len(word)), *word[:-1])]
        lasts = to_device([word[-1] for word in words], self._device)
        return BadWords(to_device(begins, self._device).view(len(words), longest), lasts)

    def needs(self, rows: Sequence[int]) -> int:
        """Return the flags that any of `rows` has."""
        return reduce(or_, map(self._needs.__getitem__, rows), 0)

    def needing(self, rows: Sequence[int], need: int) -> list[int]:
        """Return the indices into `rows` of the rows with the flag `need`."""
        needs = self._needs
        return [index for index, row in enumerate(rows) if needs[row] & need]

    def columns(self, rows: Tensor) -> ParameterColumns:
        """Gather the parameters of `rows` [R], int64 on the device."""
        return ParameterColumns(*self._floats.index_select(1, rows), *self._ints.index_select(1, rows))

    def top_logprobs(self, row: int) -> int:
        """Return how many of the likeliest tokens' log probabilities a row asks for."""
        return self._top_logprobs[row]

    def bias(self, row: int) -> tuple[Tensor, Tensor]:
        """Return tokens [n], int64, and the biases of their logits, float32, of a row that has BIASES."""
        return self._biases[row]

    def allowed(self, row: int) -> Tensor:
        """Return the only tokens [n], int64, that a row with ALLOWS may sample."""
        return self._allowed[row]

    def bad_words(self, row: int) -> BadWords:
        """Return the token sequences that a row with BAD_WORDS must not generate."""
        return self._bad_words[row]

    def prompt_len(self, row: int) -> int:
        """Return the number of a row's prompt tokens."""
        return self._prompt_lens[row]

    def banned(self, row: int, position: int) -> Tensor | None:
        """Return the stop tokens [n], int64, that a row with BANS must not sample at `position`; None if it may."""
        return self._stop_tokens[row] if position < self._free_from[row] else None


def needs_of(params: SamplingParams) -> int:
    """Return the operations that sampling with these parameters needs, as flags."""
    draws = _draws(params)
    filters = draws and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)
    penalties = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return (
        DRAWS * draws
        | FILTERS * filters
        | PENALIZES * (penalties != (1.0, 0.0, 0.0))
        | BIASES * bool(params.logit_bias)
        | BANS * bool(params.min_tokens and params.stop_token_ids)
        | LOGPROBS * (params.logprobs is not None)
        | ALLOWS * bool(params.allowed_token_ids)
        | BAD_WORDS * bool(params.bad_words_token_ids)
    )


def _draws(params: SamplingParams) -> bool:
    return params.temperature >= _GREEDY_BELOW


def _signed(seed: int) -> int:
    """Return the 64 bits of a seed as a signed int64."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
