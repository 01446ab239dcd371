"""What requests ask of their logits before a token is chosen: penalties, biases, and not to stop too early.

All rows that ask are computed together, and nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.request import SamplingParams
from octavo_engine.runner.transfer import to_device


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What sampling needs to know of one row."""

    params: SamplingParams
    seed: int
    position: int
    """The place the token will have in its sequence."""
    prompt_len: int


def needs_history(params: SamplingParams) -> bool:
    """Whether a row's penalties look at its tokens."""
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def adjust_logits(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor | None]) -> Tensor:
    """`logits` [R, vocab] as the rows want them: a copy in float32, or the same tensor if no row asks for anything.

    `history[i]` holds the tokens known of row i (prompt and answer) if its penalties need them.
    """
    penalized = [
        (index, row, tokens)
        for index, (row, tokens) in enumerate(zip(rows, history, strict=True))
        if tokens is not None
    ]
    biased = [(index, *bias) for index, row in enumerate(rows) for bias in row.params.logit_bias]
    banned = [(index, token) for index, row in enumerate(rows) for token in _banned(row)]
    if not (penalized or biased or banned):
        return logits
    device = logits.device
    changed = logits.to(torch.float32, copy=True)
    if penalized:
        indices, asking, known = zip(*penalized, strict=True)
        index = to_device(indices, device)
        changed.index_copy_(0, index, _penalized(changed[index], asking, known))
    if biased:
        indices, tokens, biases = zip(*biased, strict=True)
        places = to_device(indices, device), to_device(tokens, device)
        changed.index_put_(places, to_device(biases, device, torch.float32), accumulate=True)
    if banned:
        indices, tokens = zip(*banned, strict=True)
        places = to_device(indices, device), to_device(tokens, device)
        changed.index_put_(places, torch.full((len(banned),), -torch.inf, device=device))
    return changed


def _banned(row: SampleRow) -> tuple[int, ...]:
    """The tokens that would end the answer too early."""
    return row.params.stop_token_ids if row.position - row.prompt_len < row.params.min_tokens else ()


def _penalized(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor]) -> Tensor:
    """Repetition (CTRL, Keskar 2019: prompt and answer), frequency and presence (OpenAI: the answer)."""
    count, vocab = logits.shape
    device = logits.device
    lens = [len(tokens) for tokens in history]
    total = sum(lens)

    def column(values: Sequence[float]) -> Tensor:
        return to_device(values, device, torch.float32).unsqueeze(1)

    # Of each token of the histories, one after another: its row, and whether it belongs to the answer.
    kinds = to_device([n for row, n in zip(rows, lens, strict=True) for n in _parts(row, n)], device)
    kind = torch.repeat_interleave(torch.arange(2 * count, device=device), kinds, output_size=total)
    places = (kind // 2) * vocab + torch.cat(list(history))
    seen = torch.zeros(count * vocab, dtype=torch.bool, device=device).index_fill_(0, places, True)
    counts = torch.zeros(count * vocab, dtype=torch.int32, device=device).index_add_(0, places, (kind % 2).int())
    seen, counts = seen.view(count, vocab), counts.view(count, vocab)

    repetition = column([row.params.repetition_penalty for row in rows])
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    adjusted = torch.where(seen, repeated, logits)
    adjusted -= column([row.params.frequency_penalty for row in rows]) * counts
    adjusted -= column([row.params.presence_penalty for row in rows]) * (counts > 0)
    return adjusted


def _parts(row: SampleRow, known: int) -> tuple[int, int]:
    """How many of the known tokens are the prompt's and how many the answer's."""
    prompt = min(row.prompt_len, known)
    return prompt, known - prompt
