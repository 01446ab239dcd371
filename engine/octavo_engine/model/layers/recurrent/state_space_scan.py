"""The state space model of Mamba-2 in PyTorch: chunks of prompts as products of matrices, decodes one step at a time.

A head's state [head size, state] is exp(a * step) times the last one plus step * value * key, and a token reads it by
its query: y = state query. Within a chunk that is attention whose scores fade with distance (arXiv 2405.21060,
section 6). All numbers are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep

CHUNK = 64
"""Tokens of a prompt that are computed together."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of T tokens, for H heads of size P in G groups, and states of size N; float32."""

    values: Tensor
    """[T, H, P]"""
    steps: Tensor
    """[T, H]"""
    keys: Tensor
    """[T, G, N]"""
    queries: Tensor
    """[T, G, N]"""

    def rows(self, rows: slice | Tensor) -> Inputs:
        """Return the inputs of some tokens."""
        return Inputs(self.values[rows], self.steps[rows], self.keys[rows], self.queries[rows])


def state_space_scan(inputs: Inputs, a: Tensor, states: Tensor, step: StateStep) -> Tensor:
    """Return the outputs of tokens [T, H, P]; `a` [H] are negative.

    `states` [slots, H * P * N] are read and written in place.
    """
    heads, size = inputs.values.shape[1:]
    shape = (heads, size, inputs.keys.shape[-1])
    if max(step.lens) == 1 and len(step.lens) == len(inputs.values):  # a CUDA graph's lengths are on the device alone
        return _one_token_each(inputs, a, states, shape, step.slots, step.fresh)
    results, firsts = torch.empty_like(inputs.values), list(accumulate(step.lens, initial=0))
    decodes = torch.tensor([index for index, length in enumerate(step.lens) if length == 1], device=a.device)
    if len(decodes):
        rows = (step.ends - 1)[decodes]
        slots, fresh = step.slots[decodes], step.fresh[decodes]
        results[rows] = _one_token_each(inputs.rows(rows), a, states, shape, slots, fresh)
    for index, length in enumerate(step.lens):
        if length < 2:
            continue
        slot = step.slots[index : index + 1]
        past = _past(states, slot, step.fresh[index : index + 1]).view(shape)
        for start in range(firsts[index], firsts[index] + length, CHUNK):
            chunk = slice(start, min(start + CHUNK, firsts[index] + length))
            results[chunk], past = _chunk(inputs.rows(chunk), a, past)
        states[slot] = past.view(1, -1)
    return results


def _past(states: Tensor, slots: Tensor, fresh: Tensor) -> Tensor:
    """Return copies of the states in `slots`, [S, numbers], zeros where a sequence begins."""
    return states[slots].masked_fill_(fresh[:, None], 0)


def _one_token_each(
    inputs: Inputs, a: Tensor, states: Tensor, shape: tuple[int, ...], slots: Tensor, fresh: Tensor
) -> Tensor:
    """Return the outputs of one token of each of S sequences [S, H, P], and update their `states`."""
    per_group = shape[0] // inputs.keys.shape[1]
    keys, queries = (each.repeat_interleave(per_group, dim=1) for each in (inputs.keys, inputs.queries))
    state = _past(states, slots, fresh).view(-1, *shape)
    state *= torch.exp(inputs.steps * a)[..., None, None]
    state += (inputs.values * inputs.steps[..., None])[..., None] * keys[:, :, None]
    states[slots] = state.flatten(1)
    return (state @ queries[..., None]).squeeze(-1)


def _chunk(inputs: Inputs, a: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of L tokens of one sequence [L, H, P], and its state [H, P, N] after them."""
    per_group = len(a) // inputs.keys.shape[1]
    fading = (inputs.steps * a).cumsum(0).t()  # [H, L]
    stepped = (inputs.values * inputs.steps[..., None]).transpose(0, 1)  # [H, L, P]
    keys, queries = (each.transpose(0, 1) for each in (inputs.keys, inputs.queries))  # [G, L, N]
    later = torch.ones(fading.shape[1], fading.shape[1], dtype=torch.bool, device=a.device).triu_(1)
    distance = (fading[:, :, None] - fading[:, None]).masked_fill_(later, -torch.inf)
    scores = (queries @ keys.transpose(1, 2)).repeat_interleave(per_group, dim=0) * distance.exp_()
    queries = queries.repeat_interleave(per_group, dim=0)
    results = scores @ stepped + queries @ past.transpose(1, 2) * fading.exp()[..., None]
    left = stepped * (fading[:, -1:] - fading).exp()[..., None]
    keys = keys.repeat_interleave(per_group, dim=0)
    return results.transpose(0, 1), past * fading[:, -1:, None].exp() + left.transpose(1, 2) @ keys
