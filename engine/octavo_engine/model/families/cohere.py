"""Command R of Cohere: Llama with attention and feed-forward in parallel, both reading the result of one LayerNorm.

RoPE rotates pairs of neighbouring dimensions, and logits are scaled. Some models normalise query and key, with weights
of each head's own.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, QKNormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.layer_norm(fields, bias=False), fields.boolean("attention_bias", False)
    qk_norm = QKNormSpec(norm, own_weights=True) if fields.boolean("use_qk_norm", False) else None
    layer = LayerSpec(
        mixer=reading.interleaved(reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm)),
        feed_forward=reading.mlp(fields),
        norms=LayerNorms(before_mixer=norm),
        parallel=True,
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), scale=reading.scale(fields, "logit_scale"))
    return reading.model(fields, COHERE.architecture, reading.repeated(fields, layer), norm=norm, head=head)


COHERE = Family(
    architecture="CohereForCausalLM",
    model_type="cohere",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 8192,
        "logit_scale": 0.0625,
        "eos_token_id": 255001,
    },
)
