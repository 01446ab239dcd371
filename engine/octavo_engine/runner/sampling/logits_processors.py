"""Logits processors: penalties, biases, forbidden tokens and masks, applied to logits before a token is chosen.

All rows that need a processor are computed together, and the host never waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.runner.device_copies import copied_to_device, to_device
from octavo_engine.runner.masks import Masks
from octavo_engine.runner.sampling_table import ALLOWS, BAD_WORDS, BANS, BIASES, LOGPROBS, PENALIZES, SampledRows
from octavo_engine.runner.state_table import StateTable


def process_logits(logits: Tensor, sampled: SampledRows, table: StateTable) -> Tensor:
    """Return adjusted `logits` [R, vocab], float32; the same tensor if no row asks for a processor.

    Where tokens are only forbidden, float32 `logits` are changed in place: a copy took longer than all other work here.
    Otherwise they are copied, as the caller computes log probabilities of the model's own distribution from them, and
    may sample the same rows again after an error, which must not add biases or penalties twice.
    """
    needs = table.sampling.needs(sampled.rows)
    banned = _banned(sampled, table) if needs & BANS else []
    if not (needs & (PENALIZES | BIASES | ALLOWS | BAD_WORDS) or banned or sampled.masks):
        return logits
    changed = logits.to(torch.float32, copy=bool(needs & (LOGPROBS | PENALIZES | BIASES)))
    if needs & PENALIZES:
        _penalize(changed, sampled, table)
    if needs & BIASES:
        _add_biases(changed, sampled, table)
    if banned:
        places = _places(banned, logits.device)
        changed.index_put_(places, torch.full((len(places[0]),), -torch.inf, device=logits.device))
    if needs & ALLOWS:
        _keep_allowed(changed, sampled, table)
    if needs & BAD_WORDS:
        _forbid_bad_words(changed, sampled, table)
    if sampled.masks:
        _apply_masks(changed, sampled.masks)
    return changed


def _apply_masks(logits: Tensor, masks: Masks) -> None:
    """Forbid the tokens whose bit in a place's mask is 0. ValueError for masks of another length."""
    vocab = logits.shape[-1]
    if masks.bits.shape[-1] != -(-vocab // 32):
        raise ValueError(f"a mask for {vocab} tokens must have {-(-vocab // 32)} words of 32 bits")
    bits, index = copied_to_device(masks.bits, logits.device), to_device(masks.places, logits.device)
    if logits.device.type == "cpu" and (kernels := cpu_kernels()) is not None:
        kernels.apply_masks(logits, bits, index)
        return
    allowed = bits.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
    forbidden = allowed.flatten(1)[:, :vocab] == 0
    logits.index_copy_(0, index, logits[index].masked_fill_(forbidden, -torch.inf))


def _banned(sampled: SampledRows, table: StateTable) -> list[tuple[int, Tensor]]:
    """Return the stop tokens that would end an answer too early, with the index into the sampled rows."""
    rows, positions = sampled.rows, sampled.positions
    return [
        (index, tokens)
        for index in table.sampling.needing(rows, BANS)
        if (tokens := table.sampling.banned(rows[index], positions[index])) is not None
    ]


def _add_biases(logits: Tensor, sampled: SampledRows, table: StateTable) -> None:
    indices = table.sampling.needing(sampled.rows, BIASES)
    tokens, biases = zip(*(table.sampling.bias(sampled.rows[index]) for index in indices), strict=True)
    places = _places(list(zip(indices, tokens, strict=True)), logits.device)
    logits.index_put_(places, torch.cat(biases), accumulate=True)


def _keep_allowed(logits: Tensor, sampled: SampledRows, table: StateTable) -> None:
    """Forbid all tokens but those that a row allows."""
    for index in table.sampling.needing(sampled.rows, ALLOWS):
        tokens = table.sampling.allowed(sampled.rows[index])
        kept = logits[index].index_select(0, tokens)
        logits[index].fill_(-torch.inf).index_copy_(0, tokens, kept)


def _forbid_bad_words(logits: Tensor, sampled: SampledRows, table: StateTable) -> None:
    """Forbid the last token of each bad word whose other tokens end the answer so far, as vLLM does."""
    for index in table.sampling.needing(sampled.rows, BAD_WORDS):
        row, position = sampled.rows[index], sampled.positions[index]
        words = table.sampling.bad_words(row)
        longest = words.begins.shape[1]
        count = min(longest, position - table.sampling.prompt_len(row))
        newest = table.tokens[row, position - count : position]
        begins = words.begins[:, longest - count :]
        follows = ((begins == newest) | (begins < 0)).all(dim=1) & (words.begins[:, : longest - count] < 0).all(dim=1)
        forbidden = torch.where(follows, -torch.inf, 0.0).to(logits.dtype)
        logits[index].index_add_(0, words.lasts, forbidden)


def _places(tokens: Sequence[tuple[int, Tensor]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each of the `tokens`, which come as pairs of a row's index and its tokens."""
    indices = to_device([index for index, some in tokens for _ in range(len(some))], device)
    return indices, torch.cat([some for _, some in tokens])


def _penalize(logits: Tensor, sampled: SampledRows, table: StateTable) -> None:
    """Apply penalties: repetition (CTRL, Keskar 2019: prompt and answer), frequency, presence (OpenAI: the answer)."""
    indices = table.sampling.needing(sampled.rows, PENALIZES)
    known = [table.tokens[sampled.rows[index], : sampled.positions[index]] for index in indices]
    index = to_device(indices, logits.device)
    columns = table.sampling.columns(sampled.rows_device[index])
    counted = to_device([sampled.positions[row] for row in indices], logits.device)  # as many as `known` has
    prompt = torch.minimum(columns.prompt_lens, counted)
    # The lengths of each row's prompt and answer in `known`.
    lens = torch.stack([prompt, counted - prompt], dim=1).flatten()
    old = logits[index]
    seen, counts = _count(known, lens, old.shape)
    repetition = columns.repetition_penalties.unsqueeze(1)
    new = torch.where(seen, torch.where(old > 0, old / repetition, old * repetition), old)
    new -= columns.frequency_penalties.unsqueeze(1) * counts
    new -= columns.presence_penalties.unsqueeze(1) * (counts > 0)
    logits.index_copy_(0, index, new)


def _count(known: Sequence[Tensor], lens: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Return which tokens each row contains, bool [R, vocab], and how often its answer has each, int32 [R, vocab].

    `known` are the tokens of each row, `lens` [2 R] how many of them are the prompt's and how many the answer's.
    """
    rows, vocab = shape
    device, total = lens.device, sum(map(len, known))
    # `kind` is 2 * row for a token of the prompt, 2 * row + 1 for one of the answer.
    kind = torch.repeat_interleave(torch.arange(2 * rows, device=device), lens, output_size=total)
    places = (kind // 2) * vocab + torch.cat(list(known))
    seen = torch.zeros(rows * vocab, dtype=torch.bool, device=device).index_fill_(0, places, True)
    counts = torch.zeros(rows * vocab, dtype=torch.int32, device=device).index_add_(0, places, (kind % 2).int())
    return seen.view(rows, vocab), counts.view(rows, vocab)
