"""The state space model of Mamba in PyTorch, one token of all sequences after another.

A channel's state [state] is exp(a * step) times the last one plus step * value * key, where a has a number for each of
the state's; a token reads it by its query: y = state query (arXiv 2312.00752, section 3). All numbers are float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of T tokens, for C channels and states of size N; float32."""

    values: Tensor
    """[T, C]"""
    steps: Tensor
    """[T, C]"""
    keys: Tensor
    """[T, N], as the queries; all channels' are the same."""
    queries: Tensor

    def rows(self, rows: Tensor) -> Inputs:
        """Return the inputs of some tokens."""
        return Inputs(self.values[rows], self.steps[rows], self.keys[rows], self.queries[rows])


def selective_scan(inputs: Inputs, a: Tensor, states: Tensor, step: StateStep) -> Tensor:
    """Return the outputs of tokens [T, C]; `a` [C, N] are negative.

    `states` [slots, C * N] are read and written in place.
    """
    past = states[step.slots].masked_fill_(step.fresh[:, None], 0).view(-1, *a.shape)
    if max(step.lens) == 1 and len(step.lens) == len(inputs.values):  # a CUDA graph's lengths are on the device alone
        results = _next(inputs, a, past)
        states[step.slots] = past.flatten(1)
        return results
    firsts = list(accumulate(step.lens, initial=0))
    longest_first = sorted(range(len(step.lens)), key=lambda index: -step.lens[index])
    order = torch.tensor(longest_first, device=a.device)
    begins = torch.tensor([firsts[index] for index in longest_first], device=a.device)
    past, results = past[order], torch.empty_like(inputs.values)
    active = len(longest_first)
    for done in range(step.lens[longest_first[0]]):
        while step.lens[longest_first[active - 1]] <= done:
            active -= 1
        rows = begins[:active] + done
        results[rows] = _next(inputs.rows(rows), a, past[:active])
    states[step.slots[order]] = past.flatten(1)
    return results


def _next(inputs: Inputs, a: Tensor, past: Tensor) -> Tensor:
    """Return the outputs of one token of each of S sequences [S, C], and update their states `past` [S, C, N]."""
    past.mul_((inputs.steps[..., None] * a).exp_())
    past.addcmul_((inputs.values * inputs.steps)[..., None], inputs.keys[:, None])
    return (past @ inputs.queries[..., None]).squeeze(-1)
