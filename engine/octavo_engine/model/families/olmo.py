"""OLMo of Ai2 (arXiv 2402.00838): Llama with LayerNorms that have no weights.

Some models clamp query, key and value (`clip_qkv`).
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, NormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = NormSpec(1e-5, "layer", weight=False), fields.boolean("attention_bias", False)
    clip = reading.scale(fields, "clip_qkv") if fields.has("clip_qkv") else None
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, clip=clip),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, OLMO.architecture, reading.repeated(fields, layer), norm=norm)


OLMO = Family(
    architecture="OlmoForCausalLM",
    model_type="olmo",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": 50279,
    },
)
