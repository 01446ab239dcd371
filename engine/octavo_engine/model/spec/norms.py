"""Normalisations: of a vector, of the heads of query and key, and of groups of heads around a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the last dimension, computed in float32 and cast at the end."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """Divided by the root mean square (arXiv 1910.07467), or LayerNorm, which also subtracts the mean."""
    bias: bool = False
    weight_offset: float = 0.0
    """A number that is added to the weight first: Gemma's checkpoints hold it less one."""
    weight: bool = True
    """Whether there is a weight to multiply with: OLMo and NanoChat have none."""
    gate_rank: int | None = None
    """The numbers between two projections of what is normalised, whose sigmoid it is multiplied with (A.X K2); None: it
    is not gated."""


@dataclass(frozen=True, slots=True)
class QKNormSpec:
    """Query and key are normalised, before they are rotated unless `after_rope`."""

    norm: NormSpec
    per_head: bool = True
    """Each head by itself (Qwen3), or all heads of a token together (OLMo 2)."""
    own_weights: bool = False
    """Whether heads that are normalised by themselves have weights of their own (StableLM 2), or share one's."""
    after_rope: bool = False
    """Whether they are rotated first (HunYuan)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNormSpec:
    """A root mean square over each group of heads, around a gate (Mamba-2)."""

    eps: float
    before_gate: bool = False
    """Whether it is normalised before it is multiplied with the gate (an option of Falcon-H1), not after."""
