"""The mixers of a decoder layer: which module computes each kind of mixer."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.layers.attention.attention_experts import AttentionExperts
from octavo_engine.model.layers.attention.biased_attention import BiasedAttention
from octavo_engine.model.layers.attention.compressed_attention import CompressedAttention
from octavo_engine.model.layers.attention.convolved_attention import ConvolvedAttention
from octavo_engine.model.layers.attention.differential_attention import DifferentialAttention
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.attention.latent_attention import LatentAttention
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.parallel_mixers import ParallelMixers
from octavo_engine.model.layers.recurrent.gated_delta_net import GatedDeltaNet
from octavo_engine.model.layers.recurrent.gated_recurrence import GatedRecurrence
from octavo_engine.model.layers.recurrent.kimi_delta_attention import KimiDeltaAttention
from octavo_engine.model.layers.recurrent.lightning_attention import LightningAttention
from octavo_engine.model.layers.recurrent.mamba import Mamba
from octavo_engine.model.layers.recurrent.mamba2 import Mamba2
from octavo_engine.model.layers.recurrent.mamba_heads import MambaHeads
from octavo_engine.model.layers.recurrent.short_conv import ShortConv
from octavo_engine.model.spec import (
    AttentionExpertsSpec,
    AttentionSpec,
    BiasedAttentionSpec,
    CompressedAttentionSpec,
    ConvolvedAttentionSpec,
    DifferentialAttentionSpec,
    GatedDeltaNetSpec,
    GatedRecurrenceSpec,
    KimiDeltaAttentionSpec,
    LatentAttentionSpec,
    LightningAttentionSpec,
    Mamba2Spec,
    MambaHeadsSpec,
    MambaSpec,
    Mixer,
    ParallelMixersSpec,
    ShortConvSpec,
)

Mixing = (
    Attention
    | LatentAttention
    | DifferentialAttention
    | BiasedAttention
    | AttentionExperts
    | CompressedAttention
    | ConvolvedAttention
    | ShortConv
    | Mamba2
    | Mamba
    | MambaHeads
    | ParallelMixers
    | GatedDeltaNet
    | KimiDeltaAttention
    | LightningAttention
    | GatedRecurrence
)
"""The modules that compute mixers."""
_MIXERS: dict[type, Any] = {
    AttentionSpec: Attention,
    LatentAttentionSpec: LatentAttention,
    AttentionExpertsSpec: AttentionExperts,
    BiasedAttentionSpec: BiasedAttention,
    CompressedAttentionSpec: CompressedAttention,
    ConvolvedAttentionSpec: ConvolvedAttention,
    DifferentialAttentionSpec: DifferentialAttention,
    ShortConvSpec: ShortConv,
    GatedDeltaNetSpec: GatedDeltaNet,
    GatedRecurrenceSpec: GatedRecurrence,
    KimiDeltaAttentionSpec: KimiDeltaAttention,
    LightningAttentionSpec: LightningAttention,
    Mamba2Spec: Mamba2,
    MambaSpec: Mamba,
    MambaHeadsSpec: MambaHeads,
    ParallelMixersSpec: ParallelMixers,
}
"""The module that computes each kind of mixer, by the type of the mixer's spec."""


def build_mixer(spec: Mixer | None, hidden_size: int, layer: int, options: LayerOptions) -> Mixing | None:
    """Return the module of layer number `layer` that computes this mixer; None for a layer without one."""
    if spec is None:
        return None
    mixing: Mixing = _MIXERS[type(spec)](spec, hidden_size, layer, options)
    return mixing
