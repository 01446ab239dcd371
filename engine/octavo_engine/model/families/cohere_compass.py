"""North Micro (Compass) of Cohere: Command A with a RoPE for each type of layers, or none where the type's is null.

Unlike in Command A, RoPE rotates dimension i with i + D/2, not pairs of neighbours.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.cohere2 import parallel_layer
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    if fields.text("pooling", default="eos") != "eos":
        raise fields.wrong("pooling", fields.values["pooling"], "is not supported, only eos")
    scale = reading.scale(fields, "logit_scale") if fields.has("logit_scale") else 1.0
    return reading.model(
        fields,
        COHERE_COMPASS.architecture,
        tuple(_layer(fields, window) for window in reading.windows(fields, default=lambda _: False)),
        norm=reading.layer_norm(fields, bias=False),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True), scale=scale),
    )


def _layer(fields: Fields, window: int | None) -> LayerSpec:
    bias, kind = fields.boolean("attention_bias", False), reading.layer_type(window)
    mixer = reading.attention(fields, layer_type=kind, qkv_bias=bias, output_bias=bias, window=window)
    return parallel_layer(fields, mixer)


COHERE_COMPASS = Family(
    architecture="CohereCompassForCausalLM",
    model_type="cohere_compass_text",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "eos_token_id": 255001,
    },
)
