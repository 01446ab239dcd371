"""Phi-3 and Phi-4-mini of Microsoft (arXiv 2404.14219): Llama with fused projections, LongRoPE and partial RoPE."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_QKV, _GATE_UP = "model.layers.{layer}.self_attn.qkv_proj", "model.layers.{layer}.mlp.gate_up_proj"
PHI3_NAMES = TensorNames(query=_QKV, key=_QKV, value=_QKV, gate=_GATE_UP, up=_GATE_UP)


def read_phi3(fields: Fields, architecture: str) -> ModelSpec:
    """Return the spec of Phi-3, or of the language model of Phi-4-multimodal."""
    norm = reading.rms_norm(fields)
    mixer = reading.attention(fields, partial_rotary=True, window=reading.window(fields))
    layer = LayerSpec(
        mixer=reading.with_rope(mixer, recomputed=True),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    layers = reading.repeated(fields, layer)
    return reading.model(fields, architecture, layers, norm=norm, names=PHI3_NAMES)


PHI3: Family = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    read=lambda fields: read_phi3(fields, PHI3.architecture),
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
