"""Code World Model of Meta (arXiv 2510.02387): Llama with a sliding window in three of four layers."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, mlp_bias = reading.rms_norm(fields), fields.boolean("mlp_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, window=window),
            feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
            norms=reading.norms_before(norm),
        )
        for window in reading.windows(fields, default=lambda layer: layer % 4 != 0)
    )
    return reading.model(fields, CWM.architecture, layers, norm=norm)


CWM = Family(
    architecture="CwmForCausalLM",
    model_type="cwm",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "sliding_window": 8192,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "eos_token_id": [128001, 128008, 128009],
    },
)
