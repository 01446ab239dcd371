"""Specs of norms: of a vector, of the heads of query and key, and of groups of heads around a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NormSpec:
    """A normalisation over the last dimension, computed in float32 and cast at the end."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    """`rms`: RMSNorm (arXiv 1910.07467), `layer`: LayerNorm, which also subtracts the mean."""
    bias: bool = False
    weight_offset: float = 0.0
    """A number that is added to the stored weight (1 in Gemma)."""
    weight: bool = True
    """Whether there is a weight to multiply with: OLMo and NanoChat have none."""
    gate_rank: int | None = None
    """The inner size of the two projections whose sigmoid multiplies the norm's result (A.X K2); None: there is no
    gate."""


@dataclass(frozen=True, slots=True)
class QKNormSpec:
    """Norms of query and key, before RoPE unless `after_rope`."""

    norm: NormSpec
    per_head: bool = True
    """Each head by itself (Qwen3), or all heads of a token together (OLMo 2)."""
    own_weights: bool = False
    """Whether each head has weights of its own (StableLM 2), or all heads share them; only with `per_head`."""
    after_rope: bool = False
    """Whether RoPE is applied before the norms (HunYuan)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedNormSpec:
    """RMSNorm over each group of heads, combined with a gate (Mamba-2)."""

    eps: float
    before_gate: bool = False
    """Whether the norm comes before the product with the gate (an option of Falcon-H1), not after it."""
