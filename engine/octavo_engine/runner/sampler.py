"""From logits to tokens.

A row's token depends on its own logits, parameters and history alone, never on the rest of the batch: its random number
comes from its seed and the token's position, and a token is drawn by inverting the cumulative distribution with it. One
number a row is all the randomness there is, the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.core.request import SamplingParams

_MASK = (1 << 64) - 1
_GREEDY_BELOW = 1e-5
"""Dividing by a temperature smaller than this would leave float32's range; it means greedy, as in vLLM."""
_CANDIDATES = 1024
"""So many of the likeliest tokens are sorted for top-p before all are."""

_GROUP = 256
"""Logits whose maximum is looked for together."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What sampling needs to know of one row."""

    params: SamplingParams
    seed: int
    position: int
    """The place the token will have in its sequence."""
    prompt_len: int


@dataclass(frozen=True, slots=True)
class LogprobTensors:
    """Log probabilities of the A rows that asked for them, still on the device."""

    rows: list[int]
    """[A] which rows of the sampled ones these are."""
    counts: list[int]
    """[A] how many of the likeliest tokens each asked for, at most K."""
    tokens: Tensor
    """[A] the chosen tokens, then their log probabilities and their ranks."""
    chosen: Tensor
    ranks: Tensor
    ids: Tensor
    """[A, K] the likeliest tokens, likeliest first, then their log probabilities."""
    values: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was sampled, on the device; nothing here has waited for it."""

    tokens: Tensor
    """[R] int64"""
    finite: Tensor
    """[R] bool; where logits were not finite the token means nothing."""
    logprobs: LogprobTensors | None


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from splitmix64 (Steele, Lea, Flood 2014) over seed and position."""
    state = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1B54A32D192ED03) & _MASK
    for multiplier, shift in ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27)):
        state = ((state ^ (state >> shift)) * multiplier) & _MASK
    return ((state ^ (state >> 31)) >> 11) / float(1 << 53)


def sample(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor | None]) -> Sampled:
    """One token for each row of `logits` [R, vocab] float32.

    `history[i]` holds the tokens known of row i (prompt and answer) if its penalties need them.
    """
    raw = logits
    logits = _adjust(logits, rows, history)
    best, tokens = _likeliest(logits)
    drawing = [index for index, row in enumerate(rows) if row.params.temperature >= _GREEDY_BELOW]
    if drawing:
        tokens = tokens.clone()
        index = torch.tensor(drawing, device=logits.device)
        tokens[index] = _draw(logits[index], [rows[i] for i in drawing])
    return Sampled(tokens, torch.isfinite(best), _logprobs(raw, tokens, rows))


def _likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The largest logit of each row and the first place it is at, as `max` finds them.

    By groups: PyTorch's CPU kernel for the maximum alone is many times quicker than the one that also says where.
    """
    vocab = logits.shape[-1]
    if vocab % _GROUP:
        best, tokens = logits.max(dim=-1)
        return best, tokens
    groups = logits.view(len(logits), -1, _GROUP)
    best, group = groups.amax(dim=-1).max(dim=-1, keepdim=True)
    members = groups.gather(1, group.unsqueeze(-1).expand(-1, 1, _GROUP)).squeeze(1)
    tokens = group * _GROUP + members.argmax(dim=-1, keepdim=True)
    return best.squeeze(1), tokens.squeeze(1)


def _adjust(logits: Tensor, rows: Sequence[SampleRow], history: Sequence[Tensor | None]) -> Tensor:
    """Penalties, biases and the ban on stopping early; a copy only if a row asks for any."""
    changed = logits
    for index, row in enumerate(rows):
        params = row.params
        too_early = row.position - row.prompt_len < params.min_tokens
        if history[index] is None and not params.logit_bias and not (too_early and params.stop_token_ids):
            continue
        if changed is logits:
            changed = logits.clone()
        if (tokens := history[index]) is not None:
            _penalize(changed[index], tokens, row)
        for token, bias in params.logit_bias:
            changed[index, token] += bias
        if too_early and params.stop_token_ids:
            changed[index, list(params.stop_token_ids)] = -torch.inf
    return changed


def _penalize(logits: Tensor, tokens: Tensor, row: SampleRow) -> None:
    """Repetition (CTRL, Keskar 2019: prompt and answer), frequency and presence (OpenAI: the answer), in place."""
    params, vocab = row.params, logits.shape[0]
    if params.repetition_penalty != 1.0:
        seen = torch.bincount(tokens, minlength=vocab) > 0
        penalized = torch.where(logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty)
        logits.copy_(torch.where(seen, penalized, logits))
    counts = torch.bincount(tokens[row.prompt_len :], minlength=vocab)
    logits -= params.frequency_penalty * counts + params.presence_penalty * (counts > 0)


def needs_history(params: SamplingParams) -> bool:
    """Whether a row's penalties look at its tokens."""
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


def _draw(logits: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device).unsqueeze(1)

    logits = logits / column([row.params.temperature for row in rows])
    logits = _keep_top_k(logits, [row.params.top_k for row in rows])
    probs = torch.softmax(logits, dim=-1)
    probs = _keep_top_p(probs, column([row.params.top_p for row in rows]))
    min_p = column([row.params.min_p for row in rows])
    probs = torch.where(probs < min_p * probs.amax(dim=-1, keepdim=True), 0.0, probs)
    mass = probs.cumsum(dim=-1)
    target = column([uniform(row.seed, row.position) for row in rows]) * mass[:, -1:]
    drawn = torch.searchsorted(mass, target, right=True).squeeze(1)
    # Rounding can push the target onto the last sum: take the last token that has any probability.
    last = (probs > 0).long().cumsum(dim=-1).argmax(dim=-1)
    return torch.minimum(drawn, last)


def _keep_top_k(logits: Tensor, ks: list[int]) -> Tensor:
    vocab = logits.shape[-1]
    ks = [min(k, vocab) if k > 0 else vocab for k in ks]
    largest = max((k for k in ks if k < vocab), default=0)
    if not largest:
        return logits
    index = torch.tensor([min(k, largest) - 1 for k in ks], device=logits.device).unsqueeze(1)
    threshold = logits.topk(largest, dim=-1).values.gather(1, index)
    unlimited = torch.tensor([k == vocab for k in ks], device=logits.device).unsqueeze(1)
    return torch.where((logits < threshold) & ~unlimited, -torch.inf, logits)


def _keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """Zero all but the smallest set of likeliest tokens that has `top_p` [R, 1] of the mass (Holtzman 2020)."""
    if bool((top_p >= 1).all()):
        return probs
    ordered = probs.topk(min(_CANDIDATES, probs.shape[-1]), dim=-1).values
    if bool((ordered.sum(dim=-1, keepdim=True) < top_p).any()):
        ordered = probs.sort(dim=-1, descending=True).values
    before = ordered.cumsum(dim=-1) - ordered
    kept = (before < top_p).sum(dim=-1, keepdim=True).clamp(min=1)
    threshold = ordered.gather(1, kept - 1)
    return torch.where((probs < threshold) & (top_p < 1), 0.0, probs)


def _logprobs(logits: Tensor, tokens: Tensor, rows: Sequence[SampleRow]) -> LogprobTensors | None:
    asked = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not asked:
        return None
    index = torch.tensor(asked, device=logits.device)
    logprobs = torch.log_softmax(logits[index], dim=-1)
    chosen = logprobs.gather(1, tokens[index].unsqueeze(1))
    ranks = (logprobs > chosen).sum(dim=-1) + 1
    counts = [rows[i].params.logprobs or 0 for i in asked]
    top = logprobs.topk(max(1, *counts), dim=-1)
    return LogprobTensors(asked, counts, tokens[index], chosen[:, 0], ranks, top.indices, top.values)
