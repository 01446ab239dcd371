"""BitNet b1.58 of Microsoft (arXiv 2504.12285) with unpacked weights: Llama with two more norms in each layer.

They stand before the last projection of attention and of the feed-forward, whose activation is squared ReLU.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, output_norm=norm),
        feed_forward=reading.mlp(fields, inner_norm=norm),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, BITNET.architecture, reading.repeated(fields, layer), norm=norm)


BITNET = Family(
    architecture="BitNetForCausalLM",
    model_type="bitnet",
    read=_read,
    defaults={
        "num_key_value_heads": 5,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": 128001,
    },
)
