"""The sampler: chooses tokens from logits.

A row's token depends on its own logits, parameters and history alone, never on the rest of the batch: its random
numbers come from its seed and the token's position. Tokens are drawn by the Gumbel-max trick, with the same random
numbers on a GPU (kernels/sampling.py), where the host never waits for the device, and on a CPU (gumbel_max.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.sampling.gumbel_max import draw, likeliest
from octavo_engine.runner.sampling.logits_processors import process_logits
from octavo_engine.runner.sampling_table import ALLOWS, BAD_WORDS, BANS, DRAWS, FILTERS, LOGPROBS, SampledRows
from octavo_engine.runner.state_table import StateTable

MOST_TOGETHER = 32
"""The most places that are sampled at once where sampling takes temporary memory for every logit; the memory plan
counts that memory."""


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log probabilities of the A rows that asked for them, still on the device."""

    rows: list[int]
    """[A] the indices of these rows among the sampled ones."""
    counts: list[int]
    """[A] how many of the likeliest tokens each row asked for, at most K."""
    tokens: Tensor
    """[A] the chosen tokens."""
    chosen: Tensor
    """[A] the log probabilities of the chosen tokens."""
    ranks: Tensor
    """[A] the ranks of the chosen tokens, from 1."""
    ids: Tensor
    """[A, K] the likeliest tokens, likeliest first."""
    values: Tensor
    """[A, K] the log probabilities of the likeliest tokens."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sampled tokens of R rows, still on the device."""

    tokens: Tensor
    """[R] int64"""
    finite: Tensor
    """[R] bool; where logits were not finite the token means nothing."""
    logprobs: LogprobTensors | None
    forbidden: Tensor | None = None
    """[R] bool: whether the request's own fields forbid all tokens; None where none do, as far as the host knows."""


def parts(sampled: SampledRows, table: StateTable, device: torch.device) -> list[slice]:
    """Return the places that are sampled together: all, or a few where sampling takes memory for every logit."""
    count, needs = len(sampled.rows), table.sampling.needs(sampled.rows)
    if triton_runs_on(device):  # its kernels draw without copying the logits
        needs &= ~(DRAWS | FILTERS)
    size = MOST_TOGETHER if needs or sampled.masks else count
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def sample(logits: Tensor, sampled: SampledRows, table: StateTable) -> Sampled:
    """Choose a token for each row of `logits` [R, vocab], float32, or of 16 bits where Triton runs.

    The logits of forbidden tokens may be overwritten (see `process_logits`).
    `table` holds the sampling parameters and the tokens of the rows.
    """
    on_gpu = triton_runs_on(logits.device)
    if not (on_gpu or sampled.masks or table.sampling.needs(sampled.rows)):  # as in most steps of greedy requests
        return Sampled(*likeliest(logits), None)
    adjusted = process_logits(logits, sampled, table)
    choose = _by_kernels if on_gpu else _by_torch
    tokens, finite = choose(adjusted, sampled, table)
    forbidden = _forbidden(adjusted, finite, sampled, table)
    return Sampled(tokens, finite, _logprobs(logits, tokens, sampled, table), forbidden)


def _by_kernels(logits: Tensor, sampled: SampledRows, table: StateTable) -> tuple[Tensor, Tensor]:
    """Sample with Triton's kernels, all rows in the same launches; return tokens [R] and finite [R]."""
    from octavo_engine.kernels.sampling import SamplingColumns, sample_tokens

    of_rows = table.sampling.columns(sampled.rows_device)
    columns = SamplingColumns(
        of_rows.temperatures, of_rows.top_ks, of_rows.top_ps, of_rows.min_ps, of_rows.seeds, sampled.positions_device
    )
    return sample_tokens(logits, columns, filtered=bool(table.sampling.needs(sampled.rows) & FILTERS))


def _by_torch(logits: Tensor, sampled: SampledRows, table: StateTable) -> tuple[Tensor, Tensor]:
    """Sample with PyTorch, on a CPU; return tokens [R] and finite [R]."""
    tokens, finite = likeliest(logits)
    drawing = table.sampling.needing(sampled.rows, DRAWS)
    if len(drawing) == len(tokens):  # which is common, and spares a copy of the logits
        columns = table.sampling.columns(sampled.rows_device)
        tokens = draw(logits.contiguous(), tokens, columns, sampled.positions_device)
    elif drawing:
        tokens = tokens.clone()
        index = torch.tensor(drawing)
        columns = table.sampling.columns(sampled.rows_device[index])
        tokens[index] = draw(logits[index], tokens[index], columns, sampled.positions_device[index])
    return tokens, finite


def _forbidden(logits: Tensor, finite: Tensor, sampled: SampledRows, table: StateTable) -> Tensor | None:
    rows = {*table.sampling.needing(sampled.rows, ALLOWS | BANS | BAD_WORDS), *sampled.masks.places}
    if not rows or (logits.device.type == "cpu" and bool(finite.all())):  # to ask a GPU would be to wait for it
        return None
    index = to_device(sorted(rows), logits.device)
    forbidden = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    return forbidden.index_copy_(0, index, logits[index].amax(dim=-1) == -torch.inf)


def _logprobs(logits: Tensor, tokens: Tensor, sampled: SampledRows, table: StateTable) -> LogprobTensors | None:
    rows = table.sampling.needing(sampled.rows, LOGPROBS)
    if not rows:
        return None
    index = to_device(rows, logits.device)
    counts = [table.sampling.top_logprobs(sampled.rows[i]) for i in rows]
    chosen = tokens[index]
    return LogprobTensors(rows, counts, chosen, *token_logprobs(logits[index], chosen, max(counts)))


def token_logprobs(logits: Tensor, tokens: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return log probabilities [A], float32, and ranks [A], from 1, of `tokens` [A] by their `logits` [A, vocab].

    The other two results are the `most` likeliest tokens, at least one, and their log probabilities, [A, K] each.
    """
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    chosen = logprobs.gather(1, tokens.unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    top = logprobs.topk(max(1, min(most, logits.shape[-1])), dim=-1)
    return chosen[:, 0], ranks, top.indices, top.values
