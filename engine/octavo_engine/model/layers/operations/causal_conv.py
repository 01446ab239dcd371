"""A causal convolution of each channel over the last few tokens, whose inputs are kept as a sequence's state."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep
from octavo_engine.model.layers.operations.activations import ACTIVATIONS


class Convolution(Protocol):
    """A way to compute the causal convolution and the activation after it; PyTorch's is `torch_convolution`."""

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, states: Tensor, step: StateStep
    ) -> Tensor:
        """Return the result of `causal_conv`, with the activation of this name applied, if there is one."""


def torch_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, states: Tensor, step: StateStep
) -> Tensor:
    """Return a `Convolution` in plain PyTorch: the reference, and the way it is computed on CPUs."""
    convolved = causal_conv(x, weight, bias, states, step)
    return convolved if activation is None else ACTIVATIONS[activation](convolved)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, step: StateStep) -> Tensor:
    """Return the convolution [T, C] of x [T, C] and of the inputs before it.

    `weight` is [C, width], the newest token's last, `bias` [C].
    `states` [slots, (width - 1) * C] hold each sequence's last inputs, the oldest first, and are written in place.
    Sequences are laid out one after another, each after its earlier inputs, so that one sum serves prompts and decodes.
    """
    past_len = weight.shape[1] - 1
    laid_out, tokens = after_earlier_inputs(x, past_len, states, step)
    # Of all rows, those of earlier inputs included, as shifted views of a whole tensor are quicker than chosen rows.
    sums = laid_out[past_len:] * weight[:, past_len]
    for tap in range(past_len):
        sums += laid_out[tap : tap + len(sums)] * weight[:, tap]
    sums = sums if len(step.slots) == 1 else sums[tokens - past_len]
    return sums if bias is None else sums + bias


def after_earlier_inputs(
    x: Tensor, past_len: int, states: Tensor, step: StateStep, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the inputs [rows, C], each sequence's after its `past_len` earlier ones, and each token's row [T], int64.

    `states` [slots, past_len * C] hold the earlier inputs of x [T, C], and get the last ones. What a new sequence has
    as earlier inputs is `first` [C]; None: zeros.
    """
    fresh = step.fresh[:, None, None]
    past = states[step.slots].view(-1, past_len, x.shape[1])
    past = past.masked_fill(fresh, 0) if first is None else torch.where(fresh, first, past)
    back = torch.arange(past_len, 0, -1, device=x.device)
    tokens = torch.arange(len(x), device=x.device) + (step.sequence + 1) * past_len
    ends = step.ends + (torch.arange(len(past), device=x.device) + 1) * past_len
    begins = torch.cat((ends.new_zeros(1), ends[:-1]))
    laid_out = x.new_empty(len(x) + len(past) * past_len, x.shape[1])
    laid_out[begins[:, None] + past_len - back] = past
    laid_out[tokens] = x
    states[step.slots] = laid_out[ends[:, None] - back].view(len(past), -1)
    return laid_out, tokens
