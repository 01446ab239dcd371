"""MiniCPM 1 to 4 of OpenBMB (arXiv 2404.06395, 2506.07900): Llama with scales of embeddings, residuals and logits."""

from __future__ import annotations

import math

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    if fields.values.get("sparse_config"):  # of InfLLM v2, in which queries choose blocks of keys
        raise fields.wrong("sparse_config", fields.values["sparse_config"], "is not supported")
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields),
        norms=reading.norms_before(norm),
        residual_scale=reading.scale(fields, "scale_depth") / math.sqrt(reading.num_layers(fields)),
    )
    wider = reading.hidden_size(fields) / fields.integer("dim_model_base", 1, 1 << 20)
    return reading.model(
        fields,
        MINICPM.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_scale=reading.scale(fields, "scale_emb"),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True), scale=1 / wider),
    )


MINICPM = Family(
    architecture="MiniCPMForCausalLM",
    model_type="minicpm",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "scale_emb": 1,
        "scale_depth": 1,
        "dim_model_base": 1,
        "eos_token_id": 2,
    },
)
