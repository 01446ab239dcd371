"""The gated delta rule (arXiv 2412.06464) in PyTorch; for GPUs kernels/recurrent/gated_delta_net.py computes it.

Of each head, with decay a and strength b, token by token: state = a * state; state += k (b * (v - state^T k))^T; and
the result is state^T q. Sequences of one token are computed by these formulas, all at once. Longer ones are computed in
chunks of 64 tokens: what a chunk's tokens add to the state solves a triangular system (the WY representation, section
3.3 of the paper).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.attention.states import StateStep

CHUNK = 64
FINE_CHUNK = 16
"""The chunk if each number of a key has a decay of its own: each pair of tokens has as many decays."""
_EPSILON = 1e-6
_FLOAT32_BYTES = 4


def one_token_bytes(heads: int, key_dim: int, value_dim: int) -> int:
    """Return an upper bound of the bytes that a token which is its sequence's only one needs, its state included."""
    return _FLOAT32_BYTES * heads * (2 * key_dim * value_dim + 5 * (key_dim + value_dim))


def chunk_bytes(heads: int, key_dim: int, value_dim: int, *, fine: bool) -> int:
    """Return an upper bound of the bytes that a chunk needs; there is one at a time."""
    tokens, pairs = (FINE_CHUNK, 3 * FINE_CHUNK**2 * (key_dim + 1)) if fine else (CHUNK, 4 * CHUNK**2)
    return _FLOAT32_BYTES * heads * (pairs + tokens * 8 * (key_dim + value_dim) + 2 * key_dim * value_dim)


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """The inputs of all tokens, queries and keys as they were projected: the rule divides them by their lengths."""

    query: Tensor
    """[T, key heads, Dk], of which each serves as many heads in a row; results are scaled by Dk ** -0.5."""
    key: Tensor
    value: Tensor
    """[T, H, Dv]"""
    log_decay: Tensor
    """[T, H, 1], or [T, H, Dk] where each number of a key has a decay of its own; at most 0, in float32."""
    strength: Tensor
    """[T, H] in float32."""

    def rows(self, rows: slice | Tensor) -> DeltaInputs:
        """Return the inputs of some tokens."""
        tensors = (self.query, self.key, self.value, self.log_decay, self.strength)
        return DeltaInputs(*(tensor[rows] for tensor in tensors))


class DeltaRule(Protocol):
    """A way to compute the gated delta rule; PyTorch's is `gated_delta_rule`."""

    def __call__(self, inputs: DeltaInputs, states: Tensor, step: StateStep) -> Tensor:
        """Return [T, H, Dv]. `states` [slots, H, Dk, Dv] in float32 are read where sequences go on, and written."""


def _unit_length(x: Tensor) -> Tensor:
    """Return x [..., D] divided by its length."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPSILON)


def _prepared(inputs: DeltaInputs) -> DeltaInputs:
    """Return the same in float32, queries and keys normalised and repeated for each head, queries scaled."""
    query, key = _unit_length(inputs.query.float()), _unit_length(inputs.key.float())
    query, shared = query * inputs.query.shape[2] ** -0.5, inputs.value.shape[1] // inputs.query.shape[1]
    if shared > 1:
        query, key = (part.repeat_interleave(shared, dim=1) for part in (query, key))
    return replace(inputs, query=query, key=key, value=inputs.value.float())


def gated_delta_rule(inputs: DeltaInputs, states: Tensor, step: StateStep) -> Tensor:
    """Compute a `DeltaRule` in plain PyTorch, with a float32 result: the reference, and how it is computed on CPUs.

    Only the tokens that are computed together are made float32: those of a whole prompt are written to new memory and
    read from it again, which took a fifth of the time with 16 heads of 128.
    """
    alone = [number for number, length in enumerate(step.lens) if length == 1]
    if len(alone) == len(step.lens):
        return _one_token_each(_prepared(inputs), states, step.slots, step.fresh)
    output = torch.empty_like(inputs.value, dtype=torch.float32)
    if alone:
        numbers = torch.tensor(alone, device=output.device)
        rows = step.ends[numbers] - 1
        output[rows] = _one_token_each(_prepared(inputs.rows(rows)), states, step.slots[numbers], step.fresh[numbers])
    first = 0
    for number, length in enumerate(step.lens):
        if length > 1:
            slot, fresh = step.slots[number], step.fresh[number]
            state = states[slot].masked_fill(fresh, 0)
            size = CHUNK if inputs.log_decay.shape[-1] == 1 else FINE_CHUNK
            for start in range(first, first + length, size):
                rows_of_chunk = slice(start, min(start + size, first + length))
                output[rows_of_chunk], state = _chunk(_prepared(inputs.rows(rows_of_chunk)), state)
            states[slot] = state
        first += length
    return output


def _one_token_each(inputs: DeltaInputs, states: Tensor, slots: Tensor, fresh: Tensor) -> Tensor:
    """Return the result [S, H, Dv] of one token of each sequence."""
    state = states[slots].masked_fill_(fresh[:, None, None, None], 0)
    state.mul_(inputs.log_decay.exp()[..., None])
    found = (inputs.key[..., None, :] @ state)[..., 0, :]
    delta = inputs.strength[..., None] * (inputs.value - found)
    flat = state.view(-1, *state.shape[2:])
    flat.baddbmm_(inputs.key.flatten(0, 1)[..., None], delta.flatten(0, 1)[:, None])
    states[slots] = state
    return (inputs.query[..., None, :] @ state)[..., 0, :]


def _chunk(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result [C, H, Dv] of some tokens of one sequence, and the state [H, Dk, Dv] after them."""
    query, key, value = (x.transpose(0, 1) for x in (inputs.query, inputs.key, inputs.value))
    decay, strength = inputs.log_decay.transpose(0, 1).cumsum(1), inputs.strength.t()[..., None]
    since_start = decay.exp()
    weighted = key * strength
    lower, scores = _products(decay, key, weighted, query)  # the solver takes ones for the diagonal of `lower`
    wrong = value * strength - (weighted * since_start) @ state
    delta = torch.linalg.solve_triangular(lower, wrong, upper=False, unitriangular=True)
    result = (query * since_start) @ state + scores @ delta
    until_end = (decay[:, -1:] - decay).exp()
    state = state * decay[:, -1].exp()[..., None] + (key * until_end).transpose(1, 2) @ delta
    return result.transpose(0, 1), state


def _products(decay: Tensor, key: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Multiply each of `rows` [H, C, Dk] with the keys [H, C, Dk] of tokens up to its own, decayed since then.

    `decay` [H, C, 1] or [H, C, Dk] is summed up over tokens; the results are [H, C, C].
    """
    later = torch.ones(key.shape[1], key.shape[1], dtype=torch.bool, device=key.device).triu(1)
    fades = (decay[:, :, None] - decay[:, None]).masked_fill(later[..., None], float("-inf")).exp()
    if decay.shape[-1] == 1:
        return tuple((each @ key.transpose(1, 2)) * fades[..., 0] for each in rows)
    faded = fades * key[:, None]
    return tuple((faded @ each[..., None])[..., 0] for each in rows)
