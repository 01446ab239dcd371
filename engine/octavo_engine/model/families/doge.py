"""Doge of SmallDoge: Llama with a bias for each key, and learnt weights of the residual stream.

A key's bias is computed from its token's values and added to its attention scores. In contexts longer than
`keep_window_size` only the keys with the largest biases are attended to. This is not computed here: `keep_window_size`
is the longest context.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import BiasedAttentionSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "is_moe")
    norm, heads = reading.rms_norm(fields), reading.attention(fields)
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    mixer = BiasedAttentionSpec(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        size=heads.head_dim,
        scale=heads.scale,
        rope=heads.rope,
        norm=norm,
        window=reading.window(fields),
        bias=bias,
    )
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
        stream_weights=True,
    )
    spec = reading.model(fields, DOGE.architecture, reading.repeated(fields, layer), norm=norm)
    return replace(spec, max_position=min(spec.max_position, fields.integer("keep_window_size", 1, 1 << 30)))


DOGE = Family(
    architecture="DogeForCausalLM",
    model_type="doge",
    read=_read,
    defaults={
        "vocab_size": 32768,
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 32,
        "num_attention_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "keep_window_size": 2048,
        "rope_theta": 10000.0,
    },
)
