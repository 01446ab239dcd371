"""The language models of Cosmos 3 of NVIDIA: Arcee's layers in Edge, Qwen3's in Omni.

Their files have the tensors of attention under the names of diffusers, and no prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families.arcee import ARCEE
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.qwen3 import QWEN3
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec

_PARTS = {f"to_{each}": f"{each}_proj" for each in "qkv"} | {"to_out": "o_proj", "norm_q": "q_norm", "norm_k": "k_norm"}
_STORED_NAMES = StoredNames(
    renamed=tuple((f"{part}.", f"model.{part}.") for part in ("layers", "embed_tokens", "norm")),
    ignored=tuple(f"{part}." for part in ("blocks", "merger", "patch_embed", "pos_embed", "deepstack_merger_list")),
    endings=tuple(
        (f".self_attn.{there}.{part}", f".self_attn.{here}.{part}")
        for there, here in _PARTS.items()
        for part in ("weight", "bias")
    ),
)


def _as(architecture: str, family: Family) -> Callable[[Fields], ModelSpec]:
    """Return a function that reads `family`'s config.json, with the names in Cosmos' files."""
    return lambda fields: replace(family.read(fields), architecture=architecture, stored_names=_STORED_NAMES)


_EDGE, _OMNI = "Cosmos3EdgeTextForCausalLM", "Cosmos3OmniTextForCausalLM"
COSMOS3_EDGE = replace(
    ARCEE,
    architecture=_EDGE,
    model_type="cosmos3_edge_text",
    read=_as(_EDGE, ARCEE),
    defaults={
        **ARCEE.defaults,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "rope_theta": 1e8,
        "max_position_embeddings": 131072,
        "eos_token_id": 11,
    },
)
COSMOS3_OMNI = replace(
    QWEN3,
    architecture=_OMNI,
    model_type="qwen3_vl_text",
    read=_as(_OMNI, QWEN3),
    defaults={**QWEN3.defaults, "rope_theta": 500000.0, "max_position_embeddings": 128000},
)
