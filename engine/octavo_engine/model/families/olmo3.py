"""OLMo 3 of Ai2: OLMo 2 with a sliding window in three of four layers.

RoPE is scaled only in the layers that see all tokens.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=reading.layer_type(window),
                qkv_bias=bias,
                output_bias=bias,
                qk_norm=QKNormSpec(norm, per_head=False),
                window=window,
            ),
            feed_forward=reading.mlp(fields),
            norms=LayerNorms(after_mixer=norm, after_feed_forward=norm),
        )
        for window in reading.windows(fields, default=lambda layer: (layer + 1) % 4 != 0)
    )
    return reading.model(fields, OLMO3.architecture, layers, norm=norm)


OLMO3 = Family(
    architecture="Olmo3ForCausalLM",
    model_type="olmo3",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "eos_token_id": 50279,
    },
)
