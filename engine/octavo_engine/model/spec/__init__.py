"""A model as data: a list of layers, and the parts before and after them.

Planning, sharding, KV groups and fast paths read these alone. A new family that needs something else gets a new value
here, never a test for the family's name.
"""

from octavo_engine.model.spec.attention import (
    ALiBiSpec,
    AttentionExpertsSpec,
    AttentionSpec,
    BiasedAttentionSpec,
    DifferentialAttentionSpec,
    LatentAttentionSpec,
    LearntQueryScaling,
    OutputGateSpec,
    QueryScaling,
)
from octavo_engine.model.spec.compressed_attention import CompressedAttentionSpec, CompressorSpec, IndexerSpec
from octavo_engine.model.spec.feed_forward import (
    ExpertGroups,
    FeedForward,
    LatentRouterSpec,
    MLPSpec,
    MoESpec,
    RouterSpec,
    SharedExpertSpec,
)
from octavo_engine.model.spec.head import ClassifierSpec, HeadSpec, HeadTransformSpec
from octavo_engine.model.spec.hyper_connections import (
    ConnectionsSpec,
    GatedConnectionsSpec,
    MixedConnectionsSpec,
    WeightedConnectionsSpec,
)
from octavo_engine.model.spec.layer import (
    AlternatingUpdatesSpec,
    LaurelSpec,
    LayerNorms,
    LayerSpec,
    PerLayerInputSpec,
    SharedBlockSpec,
    StackSpec,
)
from octavo_engine.model.spec.mixer import (
    AttentionMixer,
    ConvolvedAttentionSpec,
    Mixer,
    ParallelMixersSpec,
    StateMixer,
)
from octavo_engine.model.spec.model import ModelSpec, PositionSpec
from octavo_engine.model.spec.norms import GatedNormSpec, NormSpec, QKNormSpec
from octavo_engine.model.spec.rope import RopeSpec
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
from octavo_engine.model.spec.token_index import TokenIndexSpec

__all__ = [
    "ALiBiSpec",
    "AlternatingUpdatesSpec",
    "AttentionExpertsSpec",
    "AttentionMixer",
    "AttentionSpec",
    "BiasedAttentionSpec",
    "ClassifierSpec",
    "CompressedAttentionSpec",
    "CompressorSpec",
    "ConnectionsSpec",
    "ConvolvedAttentionSpec",
    "DifferentialAttentionSpec",
    "ExpertGroups",
    "FeedForward",
    "GatedConnectionsSpec",
    "GatedDeltaNetSpec",
    "GatedNormSpec",
    "GatedRecurrenceSpec",
    "HeadSpec",
    "HeadTransformSpec",
    "IndexerSpec",
    "KimiDeltaAttentionSpec",
    "LatentAttentionSpec",
    "LatentRouterSpec",
    "LaurelSpec",
    "LayerNorms",
    "LayerSpec",
    "LearntQueryScaling",
    "LightningAttentionSpec",
    "MLPSpec",
    "Mamba2Spec",
    "MambaHeadsSpec",
    "MambaSpec",
    "MixedConnectionsSpec",
    "Mixer",
    "MoESpec",
    "ModelSpec",
    "NormSpec",
    "OutputGateSpec",
    "ParallelMixersSpec",
    "PerLayerInputSpec",
    "PositionSpec",
    "QKConvSpec",
    "QKNormSpec",
    "QueryScaling",
    "RopeSpec",
    "RouterSpec",
    "SharedBlockSpec",
    "SharedExpertSpec",
    "ShortConvSpec",
    "StackSpec",
    "StateMixer",
    "TokenIndexSpec",
    "WeightedConnectionsSpec",
]
