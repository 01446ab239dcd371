"""SmolLM3 of Hugging Face: Llama without RoPE in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mlp_bias, rotates = fields.boolean("mlp_bias", False), reading.rotates(fields)
    windowed = fields.boolean("use_sliding_window", False) and fields.has("sliding_window")
    windows = reading.windows(fields, default=lambda layer: windowed and not rotates[layer])
    rotating = reading.attention(fields, qkv_bias=bias, output_bias=bias)
    layers = tuple(
        LayerSpec(
            mixer=replace(rotating, window=window, rope=rotating.rope if rotated else None),
            feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
            norms=reading.norms_before(norm),
        )
        for window, rotated in zip(windows, rotates, strict=True)
    )
    return reading.model(fields, SMOLLM3.architecture, layers, norm=norm)


SMOLLM3 = Family(
    architecture="SmolLM3ForCausalLM",
    model_type="smollm3",
    read=_read,
    defaults={
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 2e6,
        "max_position_embeddings": 32768,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
        "eos_token_id": 128001,
    },
)
