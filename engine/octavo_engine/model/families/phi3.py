"""Phi-3 and Phi-4-mini of Microsoft (arXiv 2404.14219): Llama with fused projections, LongRoPE and partial RoPE."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.spec import LayerSpec, ModelSpec

_QKV, _GATE_UP = "model.layers.{layer}.self_attn.qkv_proj", "model.layers.{layer}.mlp.gate_up_proj"
_NAMES = TensorNames(query=_QKV, key=_QKV, value=_QKV, gate=_GATE_UP, up=_GATE_UP)


def _read(fields: Fields, architecture: str, stored: StoredNames = SAME_NAMES) -> ModelSpec:
    norm = reading.rms_norm(fields)
    mixer = reading.attention(fields, partial_rotary=True, window=reading.window(fields))
    layer = LayerSpec(
        mixer=reading.with_rope(mixer, recomputed=True),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    layers = reading.repeated(fields, layer)
    return reading.model(fields, architecture, layers, norm=norm, names=_NAMES, stored_names=stored)


PHI3: Family = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    read=lambda fields: _read(fields, PHI3.architecture),
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 32000,
    },
)
PHI4_MULTIMODAL: Family = Family(
    architecture="Phi4MultimodalForCausalLM",
    model_type="phi4_multimodal",
    read=lambda fields: _read(
        fields, PHI4_MULTIMODAL.architecture, StoredNames(ignored=("model.embed_tokens_extend.",))
    ),
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": [199999, 200020],
    },
)
"""The language model of Phi-4-multimodal; tensors of images and sound are not loaded."""
