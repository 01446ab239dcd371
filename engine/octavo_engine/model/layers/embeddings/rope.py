"""Rotary position embedding (arXiv 2104.09864): pairs of dimensions (i, i + D/2) rotate with the position."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.attention.rope import Rope
from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import LearntQueryScaling, QueryScaling, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Return the radians per position of each rotated pair in short sequences, float32 [rotary_dim / 2], on the CPU.

    Half of an odd `rotary_dim` is rounded up.
    """
    size = rope.rotary_dim or head_dim
    if rope.kind == "proportional":
        size = head_dim
    exponents = torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind in ("factors", "longrope"):
        return frequencies / torch.tensor(rope.factors, dtype=torch.float32, device="cpu")
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    if rope.kind == "yarn":
        return _yarn(frequencies, rope, size)
    if rope.kind == "proportional":
        return frequencies[: int(rope.proportion * head_dim // 2)] / rope.factor
    return frequencies


def head_order(rope: RopeSpec | None, head_dim: int) -> Tensor | None:
    """Return the dimension that each stored dimension of a head becomes, int64 [head_dim]; None: the order stays.

    In the new order all pairs are (i, i + head_dim / 2): rotated pairs first, then the others. In a head of odd size
    only the rotated dimensions are pairs, and are the first ones. Scores stay the same, as query and key have the same
    order.
    """
    if rope is None:
        return None
    size = rope.rotary_dim or head_dim
    size += size % 2
    pairs = torch.arange(size, device="cpu").view(-1, 2) if rope.interleaved else None
    if pairs is None:
        if size == head_dim:
            return None
        pairs = torch.arange(size, device="cpu").view(2, -1).t()
    rest = torch.arange(size, head_dim, device="cpu")
    # The stored dimension of each dimension in the new order.
    if head_dim % 2:
        stored = torch.cat((pairs.t().reshape(-1), rest))
    else:
        stored = torch.cat((pairs, rest.view(2, -1).t())).t().reshape(-1)
    return torch.argsort(stored)


@lru_cache(maxsize=16)
def row_order(rope: RopeSpec | None, head_dim: int, heads: int) -> Tensor | None:
    """Return `head_order` for the rows of all `heads`, int64 [heads * head_dim]; equal layers share the tensor."""
    order = head_order(rope, head_dim)
    if order is None:
        return None
    return (torch.arange(heads, device="cpu")[:, None] * head_dim + order).view(-1)


def _llama3(frequencies: Tensor, rope: RopeSpec) -> Tensor:
    """Scale as Llama 3.1 does (its reference code): long waves by `factor`, short ones not, others in between."""
    wavelengths = 2 * math.pi / frequencies
    longest, shortest = (rope.original_max_position / f for f in (rope.low_freq_factor, rope.high_freq_factor))
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, frequencies)
    smooth = (rope.original_max_position / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * stretched / rope.factor + smooth * stretched
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, stretched)


def _yarn(frequencies: Tensor, rope: RopeSpec, head_dim: int) -> Tensor:
    """Scale as YaRN (arXiv 2309.00071): quick pairs keep their frequency, slow ones get slower, with a ramp between."""

    def pair_that_turns(times: float) -> float:
        """Return the index (a fraction) of the pair that makes this many turns within the original context."""
        return head_dim * math.log(rope.original_max_position / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001
    pairs = torch.arange(head_dim // 2, dtype=torch.float32, device="cpu")
    slower = ((pairs - first) / (last - first)).clamp(0, 1)
    return frequencies / rope.factor * slower + frequencies * (1 - slower)


def query_scale(positions: Tensor, scaling: QueryScaling | LearntQueryScaling) -> Tensor:
    """Return the factors of the queries at `positions` [T], float32 [T, 1, 1]; for learnt scaling log(1 + position),
    from which each head computes its factor."""
    if isinstance(scaling, LearntQueryScaling):
        return torch.log1p(positions.to(torch.float32))[:, None, None]
    periods = (positions.to(torch.float32) + scaling.shift) / scaling.period
    if scaling.power:
        return torch.exp(scaling.beta * torch.log1p(periods))[:, None, None]
    return (1 + scaling.beta * torch.log(1 + periods.floor()))[:, None, None]


class RotaryEmbedding(nn.Module):
    """The angles of a step's positions, computed once for all layers that rotate alike.

    Pairs that are not rotated have angles of 0.
    """

    inv_freq: Tensor
    long_inv_freq: Tensor | None
    """The frequencies for long sequences, if they differ."""
    table: Tensor | None
    """The sines of each position, then its cosines, float32 [rows, head_dim], where a checkpoint may hold them."""

    def __init__(
        self,
        rope: RopeSpec | None,
        head_dim: int,
        device: torch.device,
        query_scaling: QueryScaling | LearntQueryScaling | None = None,
    ) -> None:
        """`rope` None: nothing is rotated."""
        super().__init__()
        self.rope, self.query_scaling = rope, query_scaling
        rotating = torch.empty(0, device="cpu") if rope is None else inverse_frequencies(rope, head_dim)
        self.rotating = len(rotating)
        self.register_buffer("inv_freq", self._padded(rotating, head_dim).to(device), persistent=False)
        frequencies = None
        if rope is not None and rope.kind == "longrope":
            rotating = inverse_frequencies(replace(rope, factors=rope.long_factors), head_dim)
            frequencies = self._padded(rotating, head_dim).to(device)
        self.register_buffer("long_inv_freq", frequencies, persistent=False)
        table = None
        if rope is not None and rope.rows:
            angles = torch.arange(rope.rows, dtype=torch.float32, device=device)[:, None] * rotating.to(device)
            table = torch.cat((angles.sin(), angles.cos()), dim=1)
        self.register_buffer("table", table, persistent=False)
        learnt = rope is not None and rope.learnt
        self.log_scales = parameter(self.rotating, dtype=torch.float32, device=device) if learnt else None

    def _padded(self, rotating: Tensor, head_dim: int) -> Tensor:
        """Return the frequencies of all pairs of a head [head_dim / 2], zero for pairs that are not rotated.

        A head of odd size has no pairs but those.
        """
        if self.rope is not None and self.rope.backwards:
            rotating = -rotating
        if self.rope is not None and head_dim % 2:
            return rotating
        return torch.cat((rotating, torch.zeros(head_dim // 2 - len(rotating), device="cpu")))

    def forward(self, positions: Tensor, long_context: Tensor | None = None) -> Rope:
        """Map positions [T] to cosines and sines, float32 [T, 1, head_dim / 2], times the attention factor.

        `long_context` [T]: which tokens belong to long sequences; tokens beyond the original context always do.
        """
        rope = self.rope
        if self.table is not None:
            sin, cos = F.embedding(positions, self.table)[:, None].chunk(2, dim=-1)
            return Rope(cos.contiguous(), sin.contiguous())
        if rope is None or self.long_inv_freq is None:
            return self._rotation(positions, self.inv_freq, 1.0 if rope is None else rope.attention_factor)
        beyond = positions >= rope.original_max_position
        is_long = (beyond if long_context is None else beyond | long_context)[:, None, None]
        frequencies = torch.where(is_long, self.long_inv_freq, self.inv_freq)
        factors = torch.where(is_long, rope.long_attention_factor, rope.attention_factor)
        return self._rotation(positions, frequencies, factors)

    def _rotation(self, positions: Tensor, frequencies: Tensor, factor: Tensor | float) -> Rope:
        if self.log_scales is not None:
            frequencies = frequencies[: self.rotating] * self.log_scales.exp()
        angles = positions.to(torch.float32)[:, None, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        if isinstance(factor, Tensor) or factor != 1:
            cos[..., : self.rotating].mul_(factor)
            sin[..., : self.rotating].mul_(factor)
        return Rope(cos, sin, None if self.query_scaling is None else query_scale(positions, self.query_scaling))

    def tensors(self, names: TensorNames) -> Iterator[CheckpointTensor]:
        """Yield the learnt scales of the frequencies, and the table that replaces the computed one if it is stored."""
        if self.log_scales is not None:
            yield plain(names.rope_scales, self.log_scales, unsharded(self.rotating))
        if self.table is not None:
            yield replace(plain(names.rope_table, self.table, unsharded(len(self.table))), optional=True)
