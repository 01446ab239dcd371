"""The types of mixers, the part of a layer that combines each token with earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.model.spec.attention import (
    AttentionExpertsSpec,
    AttentionSpec,
    BiasedAttentionSpec,
    DifferentialAttentionSpec,
    LatentAttentionSpec,
)
from octavo_engine.model.spec.compressed_attention import CompressedAttentionSpec
from octavo_engine.model.spec.state_mixers import (
    GatedDeltaNetSpec,
    GatedRecurrenceSpec,
    KimiDeltaAttentionSpec,
    LightningAttentionSpec,
    Mamba2Spec,
    MambaHeadsSpec,
    MambaSpec,
    ShortConvSpec,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelMixersSpec:
    """Attention and a state space model of the same input, whose results are added (Falcon-H1, arXiv 2507.22448)."""

    attention: AttentionSpec
    state_mixer: Mamba2Spec
    input_scales: tuple[float, float] = (1.0, 1.0)
    """Factors of the two inputs, attention's first."""
    output_scales: tuple[float, float] = (1.0, 1.0)
    """Factors of the two results, attention's first."""


AttentionMixer = (
    AttentionSpec
    | LatentAttentionSpec
    | DifferentialAttentionSpec
    | BiasedAttentionSpec
    | AttentionExpertsSpec
    | CompressedAttentionSpec
)
StateMixer = (
    ShortConvSpec
    | Mamba2Spec
    | MambaSpec
    | MambaHeadsSpec
    | GatedDeltaNetSpec
    | KimiDeltaAttentionSpec
    | LightningAttentionSpec
    | GatedRecurrenceSpec
)
"""Mixers that keep one state for a sequence instead of keys and values of its tokens."""
Mixer = AttentionMixer | StateMixer | ParallelMixersSpec
"""All kinds of mixers."""
