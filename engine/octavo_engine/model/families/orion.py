"""Orion of OrionStar (arXiv 2401.12246): Llama with LayerNorm, whose epsilon is in `rms_norm_eps`."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True, eps="rms_norm_eps")
    bias = fields.boolean("attention_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, ORION.architecture, reading.repeated(fields, layer), norm=norm)


ORION = Family(
    architecture="OrionForCausalLM",
    model_type="orion",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
)
