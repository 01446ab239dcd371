"""Llama (arXiv 2302.13971, 2407.21783) and the many models that share its class, SmolLM2 among them.

The files of other families say what differs from this one: RMSNorm before attention and before the feed-forward,
grouped-query attention with RoPE, and a feed-forward with a gate (SiLU).
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields, architecture: str) -> ModelSpec:
    reading.refuse_windows(fields)
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm)


LLAMA: Family = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    read=lambda fields: _read(fields, LLAMA.architecture),
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
EMU3: Family = Family(
    architecture="Emu3ForCausalLM",
    model_type="emu3_text_model",
    read=lambda fields: _read(fields, EMU3.architecture),
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 9216,
        "eos_token_id": 151850,
    },
)
"""The language model of BAAI's Emu3, in which images are tokens."""
