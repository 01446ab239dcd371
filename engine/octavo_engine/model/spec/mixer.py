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
    QKConvSpec,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolvedAttentionSpec:
    """Compressed Convolutional Attention (arXiv 2510.04476): of queries and keys that convolutions have mixed (Zaya).

    Each head's query and key are the convolutions' results plus means of what was projected, divided by their lengths;
    a key is multiplied with a number that each KV head has.
    """

    attention: AttentionSpec
    state_mixer: QKConvSpec


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
    | QKConvSpec
)
"""Mixers that keep one state for a sequence instead of keys and values of its tokens."""
JointMixer = ParallelMixersSpec | ConvolvedAttentionSpec
"""Mixers with attention and a part that keeps a state."""
Mixer = AttentionMixer | StateMixer | JointMixer
"""All kinds of mixers."""
