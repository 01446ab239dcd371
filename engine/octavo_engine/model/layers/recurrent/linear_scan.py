"""A linear recurrence of each channel in PyTorch, all tokens of all sequences at once.

A channel's state is its gate times the last one plus the token's value. Tokens are combined by twos, fours and so on
(Hillis and Steele, 1986): a sum of so many steps is (product of gates, state from zero), and two sums in a row combine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep


def linear_scan(values: Tensor, gates: Tensor, states: Tensor, step: StateStep) -> Tensor:
    """Return the states after each token, float32 [T, C], of values and gates [T, C] in float32, which are overwritten.

    `states` [slots, C] hold each sequence's last one and are written in place.
    """
    past = states[step.slots].masked_fill_(step.fresh[:, None], 0)
    firsts = first_tokens(step)
    values[firsts] += gates[firsts] * past
    gates[firsts] = 0  # the state before them is in their values now
    reach = 1
    while reach < max(step.lens):
        earlier = values[:-reach] * gates[reach:]
        values[reach:] += earlier
        gates = torch.cat((gates[:reach], gates[reach:] * gates[:-reach]))
        reach *= 2
    states[step.slots] = values[step.ends - 1]
    return values


def first_tokens(step: StateStep) -> Tensor:
    """Return the step's first token of each sequence, [S]."""
    return torch.cat((step.ends.new_zeros(1), step.ends[:-1]))
