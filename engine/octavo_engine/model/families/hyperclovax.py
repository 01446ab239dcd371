"""HyperCLOVA X SEED of NAVER: Granite with norms after attention and feed-forward besides those before."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec

_NAMES = TensorNames(
    after_mixer="model.layers.{layer}.post_norm1", after_feed_forward="model.layers.{layer}.post_norm2"
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    after, mlp_bias = norm if fields.boolean("use_post_norm", True) else None, fields.boolean("mlp_bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias)
    if fields.has("attention_multiplier"):
        mixer = replace(mixer, scale=reading.scale(fields, "attention_multiplier"))
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=LayerNorms(before_mixer=norm, after_mixer=after, before_feed_forward=norm, after_feed_forward=after),
        residual_scale=reading.scale(fields, "residual_multiplier"),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", False), scale=reading.scale(fields, "logits_scaling"))
    return reading.model(
        fields,
        HYPERCLOVAX.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_scale=reading.scale(fields, "embedding_multiplier"),
        head=head,
        names=_NAMES,
    )


HYPERCLOVAX = Family(
    architecture="HyperCLOVAXForCausalLM",
    model_type="hyperclovax",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "embedding_multiplier": 1.0,
        "logits_scaling": 1.0,
        "residual_multiplier": 1.0,
        "use_post_norm": True,
        "eos_token_id": 2,
    },
)
