"""Phi-3 and Phi-4-mini (arXiv 2404.14219): Llama's layers from fused projections, LongRoPE, partly rotated heads."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import TensorNames
from octavo_engine.model.spec import LayerSpec, ModelSpec

_QKV, _GATE_UP = "model.layers.{layer}.self_attn.qkv_proj", "model.layers.{layer}.mlp.gate_up_proj"
_NAMES = TensorNames(query=_QKV, key=_QKV, value=_QKV, gate=_GATE_UP, up=_GATE_UP)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    mixer = reading.attention(fields, partial_rotary=True, window=reading.window(fields))
    layer = LayerSpec(
        mixer=reading.with_rope(mixer, recomputed=True),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, PHI3.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


PHI3 = Family(
    architecture="Phi3ForCausalLM",
    model_type="phi3",
    read=_read,
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
