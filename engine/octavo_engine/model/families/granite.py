"""IBM's Granite 3: Llama's layers with four scales, of embeddings, scores, residuals and logits."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, scale=_scale(fields, "attention_multiplier")),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
        residual_scale=_scale(fields, "residual_multiplier"),
    )
    return reading.model(
        fields,
        GRANITE.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_scale=_scale(fields, "embedding_multiplier"),
        head=HeadSpec(fields.boolean("tie_word_embeddings", False), scale=1 / _scale(fields, "logits_scaling")),
    )


def _scale(fields: Fields, name: str) -> float:
    return fields.number(name, 1e-6, 1e6)


GRANITE = Family(
    architecture="GraniteForCausalLM",
    model_type="granite",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
