"""The language model of Phi-4-multimodal of Microsoft (arXiv 2503.01743): Phi-3's; what reads images is not loaded.

In its own repository linears have low-rank weights beside them, which only images and sound need.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.phi3 import PHI3, PHI3_NAMES, read_phi3
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec

_STORED = StoredNames(ignored=("model.embed_tokens_extend.",), endings=((".base_layer.weight", ".weight"),))
_LINEARS = (PHI3_NAMES.query, PHI3_NAMES.output, PHI3_NAMES.up, PHI3_NAMES.down)
_LOW_RANK = tuple(
    f"{linear}.lora_{side}.{kind}.weight" for linear, side, kind in product(_LINEARS, "AB", ("speech", "vision"))
)


def _read(fields: Fields) -> ModelSpec:
    names = replace(PHI3_NAMES, buffers=_LOW_RANK)
    return replace(read_phi3(fields, PHI4_MULTIMODAL.architecture), names=names, stored_names=_STORED)


PHI4_MULTIMODAL: Family = Family(
    architecture="Phi4MultimodalForCausalLM",
    model_type="phi4_multimodal",
    read=_read,
    defaults={
        **PHI3.defaults,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "eos_token_id": [199999, 200020],
    },
)
PHI4_MM: Family = replace(
    PHI4_MULTIMODAL,
    architecture="Phi4MMForCausalLM",
    model_type="phi4mm",
    read=lambda fields: replace(_read(fields), architecture=PHI4_MM.architecture),
)
