"""OLMo 2 of Ai2 (arXiv 2501.00656): Llama with norms after attention and feed-forward, not before, and QK norm.

QK norm is over all heads of query, and of key, together.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    qk_norm = QKNormSpec(norm, per_head=False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm),
        feed_forward=reading.mlp(fields),
        norms=LayerNorms(after_mixer=norm, after_feed_forward=norm),
    )
    return reading.model(fields, OLMO2.architecture, reading.repeated(fields, layer), norm=norm)


OLMO2 = Family(
    architecture="Olmo2ForCausalLM",
    model_type="olmo2",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 50279,
    },
)
